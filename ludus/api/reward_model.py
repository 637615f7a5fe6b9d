"""`ludus.train_reward_model` and `ludus.RewardModel`: a model trained on preferences that scores conversations.

Knows: which part is built from which settings.  Knows not: how rows become pairs, what the scores are used for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.api.local import INSTALL_HINT
from ludus.api.rows import load_rows
from ludus.api.supervised import writable
from ludus.config import Config
from ludus.errors import ConfigError, UserError
from ludus.loop.preferences import RewardSettings, reward_batches
from ludus.loop.sft import OnStep, conversation_sequences
from ludus.models.settings import ModelSettings
from ludus.text.chat import ChatText

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

Messages = Sequence[Mapping[str, Any]]
# Short conversations share a forward pass of so many tokens; longer ones get one of their own.
_ROW_TOKENS = 4096


class RewardModel:
    """Scores conversations with a model that `train_reward_model` or TRL trained. Safe to share between threads."""

    def __init__(self, path: str | Path, *, dtype: str = "float32", device: str = "auto") -> None:
        """path: a folder, or a name on the hub, of a sequence classification model with a single output.

        Raises UserError if there is no such model, or if it has no such output.
        """
        from ludus.trainer.reward import RewardScores  # imports torch, which only this class needs

        model = _load(ModelSettings(path=str(path), dtype=dtype, device=device))  # type: ignore[arg-type]
        if not model.head_weight.any():
            raise UserError(f"{str(path)!r} has no score.weight: it is no reward model; train_reward_model makes one")
        self._scores = RewardScores(model, row_tokens=_ROW_TOKENS, pad_id=model.module.config.pad_token_id)
        self._text = ChatText.load(model.folder)
        self._lock = threading.Lock()
        self._path = str(path)

    def __repr__(self) -> str:
        return f"RewardModel({self._path!r})"

    def scores(self, conversations: Sequence[Messages]) -> list[float]:
        """The score of each conversation up to its last assistant message; shared beginnings are computed once.

        Raises UserError if one of them is no conversation, or has no assistant message.
        """
        sequences = []
        for number, messages in enumerate(conversations):
            replies = conversation_sequences({"messages": messages}, self._text, at=f"conversation {number}")
            if not replies:
                raise UserError(f"conversation {number} has no message of the assistant's; there is nothing to score")
            sequences.append(replies[-1].token_ids)
        if not sequences:
            return []
        with self._lock:
            scores: list[float] = self._scores(self._scores.rows(sequences)).tolist()
        return scores

    async def score(self, messages: Messages) -> float:
        """The score of one conversation, computed on a thread so that other agents go on."""
        (score,) = await asyncio.to_thread(self.scores, [messages])
        return score


def train_reward_model(
    config: Config,
    dataset: object,
    folder: Path | str,
    settings: RewardSettings | None = None,
    *,
    on_step: OnStep | None = None,
) -> int:
    """Train the configured model to score what the rows prefer higher, and save it in `folder`. Returns the number of
    steps.

    config: `model`, `trainer` and `seed` act. All weights are trained, in this process.
    dataset: rows with `chosen` and `rejected`, as for `train_preferences`, and optionally `margin`.
    The saved model loads with `RewardModel`, and with transformers' AutoModelForSequenceClassification.
    Raises UserError for a row that cannot be read, with its number, and for a folder that cannot be written;
    ConfigError for adapters and several ranks.
    """
    if config.model.lora is not None or config.trainer.ranks > 1:
        raise ConfigError("a reward model is trained whole, in one process; leave model.lora and trainer.ranks unset")
    how = settings or RewardSettings()
    rows, saved = load_rows(dataset), writable(folder)
    from ludus.trainer.export import export_scalar_model
    from ludus.trainer.reward import RewardTrainer

    model = _load(config.model, seed=config.seed)
    text = ChatText.load(model.folder, **config.model.chat)
    padding = text.tokenizer.encode(text.tokenizer.special_tokens.get("pad_token", ""))
    pad_id = padding[0] if padding else min(text.tokenizer.stop_ids)
    learner = RewardTrainer(
        model, config.trainer, center_coefficient=how.center_rewards_coefficient, pad_id=pad_id, seed=config.seed
    )
    step = 0
    for step, pairs in enumerate(reward_batches(text, rows, how, seed=config.seed), 1):
        metrics = learner.train_batch(pairs)
        if on_step is not None:
            on_step(step, metrics)
    export_scalar_model(model, saved, pad_id=pad_id)
    return step


def _load(settings: ModelSettings, *, seed: int = 0) -> LoadedModel:
    try:
        from ludus.models.load import load_model
        from ludus.models.scalar_head import with_scalar_head
    except ModuleNotFoundError as error:
        raise UserError(f"reward models need {error.name!r}: {INSTALL_HINT}") from error
    return with_scalar_head(load_model(settings, seed=seed))
