"""`ludus.train_supervised`: a configuration and conversations in, a trained model out.

Knows: which part is built from which settings.  Knows not: how conversations become batches.
"""

from __future__ import annotations

from pathlib import Path

from ludus.api.local import open_local
from ludus.api.rows import load_rows
from ludus.config import Config
from ludus.errors import UserError
from ludus.loop.sft import OnStep, SftSettings, supervised_batches, train_conversations
from ludus.processes.blocking import run_blocking


def train_supervised(
    config: Config,
    dataset: object,
    folder: Path | str,
    settings: SftSettings | None = None,
    *,
    on_step: OnStep | None = None,
) -> int:
    """Train the configured model on every assistant message of the rows, and save it in `folder`; the steps taken.

    config: `model`, `trainer` without its `loss`, and `seed` act; there are no rollouts and no run folder.
    dataset: rows with `messages`, and `tools` if there are any, in any form that `Trainer` takes.
    Raises UserError for a row that is no conversation, with its number, and for a folder that cannot be written.
    """
    rows, folder = load_rows(dataset), Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # known before hours are spent
    except OSError as error:
        raise UserError(f"cannot save a model in {str(folder)!r}: {error.strerror}; choose another folder") from error

    async def train() -> int:
        async with open_local(config) as local, local.learner(config) as learner:
            rules = {"row_tokens": config.trainer.row_tokens, "seed": config.seed}
            step = 0
            for step, batch in enumerate(supervised_batches(local.text, rows, settings or SftSettings(), **rules), 1):
                metrics = train_conversations(learner, batch, local.lease)
                if on_step is not None:
                    on_step(step, metrics)
            local.save(learner, folder)
            return step

    return run_blocking(train())
