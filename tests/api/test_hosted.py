"""A model that is trained on what is handed in: steps, checkpoints, forks, and what it goes on from."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ludus.api.hosted import HostedModel, fork_checkpoint
from ludus.config import Config
from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.sft import SftSettings

ROWS = [{"messages": [{"role": "user", "content": "Guess."}, {"role": "assistant", "content": "42"}]}] * 4
PROBE = tuple(range(3, 20))


def config_of(folder: Path, base: Path | str, name: str) -> Config:
    model = {"path": str(base), "dtype": "float32", "lora": None}
    return Config(model=model, engine={"kv_bytes": 2**22}, run_root=str(folder), name=name)


def test_it_goes_on_where_it_was(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A step is saved with weights and account; opened again, or forked, the model answers with its weights."""
    told: list[tuple[int, int]] = []

    async def opened(name: str, *, num_steps: int) -> tuple[HostedModel, Any]:
        async with AsyncExitStack() as stack:
            model = await HostedModel.open(config_of(tmp_path, tiny_model_folder, name), stack)
            for _ in range(num_steps):
                async with model.lock:
                    metrics = await model.train_supervised(
                        ROWS,
                        SftSettings(batch_size=2),
                        lambda num_batches: [1e-2] * num_batches,
                        seed=1,
                        on_batch=lambda number, total, _: told.append((number, total)),
                    )
                    assert metrics["train/batches"] == 2.0
                    assert (await model.save()).parent.name == f"step-{model.step:06d}"
            scores = await model.run.engine.score(PROBE)
            model.account(Ledger.all_masked(3, "unused"))
        return model, scores

    async def main() -> None:
        _, first = await opened("one", num_steps=1)
        again, scores = await opened("one", num_steps=0)
        assert (again.step, scores) == (1, first) and again.run.start.ledger.masked == {"unused": 3}
        later, _ = await opened("one", num_steps=1)
        assert later.step == 2
        source, base = tmp_path / "one", str(tiny_model_folder)
        assert fork_checkpoint(source, tmp_path / "other", base, not_after_step=1) == 1
        forked, scores = await opened("other", num_steps=0)
        assert (forked.step, scores) == (1, first) and forked.run.start.ledger == Ledger()
        later.keep_checkpoints(())
        with pytest.raises(UserError, match="no checkpoint up to step 1; it has: 2"):
            fork_checkpoint(source, tmp_path / "new", base, not_after_step=1)
        with pytest.raises(UserError, match="has the base model"):
            fork_checkpoint(source, tmp_path / "new", "smollm2-135m", not_after_step=None)

    asyncio.run(main())
    assert told == [(1, 2), (2, 2)] * 2


def test_a_record_that_is_gone_does_not_end_a_model(tiny_model_folder: Path, tmp_path: Path) -> None:
    """It goes on from its checkpoint, as a run that is resumed does; what is lost is what was in the file."""
    config = config_of(tmp_path, tiny_model_folder, "one")

    async def opened(*, is_trained: bool) -> tuple[int, Any]:
        async with AsyncExitStack() as stack:
            model = await HostedModel.open(config, stack)
            if is_trained:
                settings, rates = SftSettings(batch_size=2), lambda num_batches: [1e-2] * num_batches
                await model.train_supervised(ROWS, settings, rates, seed=1, on_batch=lambda *_: None)
                await model.save()
            return model.step, await model.run.engine.score(PROBE)

    before = asyncio.run(opened(is_trained=True))
    (config.folder / "run.db").unlink()
    assert asyncio.run(opened(is_trained=False)) == before and before[0] == 1
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "writer.lock").touch()
    with pytest.raises(UserError, match="has begun already"):
        fork_checkpoint(config.folder, begun, str(tiny_model_folder), not_after_step=None)
