"""Supervised training in chunks: files, order, one schedule over all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.schedule import create_lr_schedule
from ludus.compat.art.supervised import create_sft_dataset_iterator, iterate_file, train_sft_from_file
from ludus.compat.art.trainable import TrainableModel
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError


def lesson(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}."}]}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return path


def asked(trajectories: list[Trajectory]) -> list[str]:
    return [each.messages()[0]["content"] for each in trajectories]


def test_chunks_have_one_schedule(tmp_path: Path) -> None:
    """Each epoch has every trajectory once; the rates of all chunks are those of one schedule; going on is the same."""
    given = [Trajectory(messages_and_choices=lesson(number)["messages"]) for number in range(5)]
    chunks = list(create_sft_dataset_iterator(given, chunk_size=2, epochs=2, batch_size=2, peak_lr=1.0))
    assert [(each.step, each.epoch, each.epoch_step, len(each.trajectories)) for each in chunks] == [
        (0, 0, 0, 4), (2, 0, 2, 1), (3, 1, 0, 4), (5, 1, 2, 1),
    ]  # fmt: skip
    rates = [rate for each in chunks for rate in each.config.learning_rate]  # type: ignore[union-attr]
    assert rates == create_lr_schedule(6, 1.0, "linear", warmup_steps=0)
    orders = [asked(chunks[2 * epoch].trajectories + chunks[2 * epoch + 1].trajectories) for epoch in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == [f"{number}?" for number in range(5)] and orders[0] != orders[1]
    later = create_sft_dataset_iterator(given, chunk_size=2, epochs=2, batch_size=2, peak_lr=1.0, initial_step=5)
    assert [asked(each.trajectories) for each in later] == [asked(chunks[3].trajectories)]
    middle = list(
        create_sft_dataset_iterator(given, 2, 2, 2, 1.0, "linear", 0.1, True, 42, 1, show_progress=True, final_step=4)
    )
    batches = [each for chunk in chunks for each in (chunk.trajectories[:2], chunk.trajectories[2:]) if each]
    assert asked([item for each in middle for item in each.trajectories]) == asked(
        [*batches[1], *batches[2], *batches[3]]
    )
    assert [rate for each in middle for rate in each.config.learning_rate] == rates[1:4]  # type: ignore[union-attr]
    assert [(each.step, each.epoch_step) for each in middle] == [(1, 1), (2, 2), (3, 0)]
    with pytest.raises(UserError, match="batch_size=0"):
        list(create_sft_dataset_iterator(given, batch_size=0))


def test_a_file_of_conversations(tmp_path: Path) -> None:
    """Every line once an epoch, in the file's order or in one for each epoch; the rest after those skipped."""
    path = write(tmp_path / "a.jsonl", *map(lesson, range(4)))
    plain = asked(list(iterate_file(path, epochs=2, shuffle=False)))
    assert plain == ["0?", "1?", "2?", "3?"] * 2
    assert asked(list(iterate_file(path, 2, 1))) == plain  # a buffer of one, by position, mixes nothing
    mixed = asked(list(iterate_file(path, epochs=2, shuffle_buffer_size=3)))
    assert sorted(mixed[:4]) == plain[:4] and mixed[:4] != mixed[4:]
    assert asked(list(iterate_file(path, epochs=2, initial_skip=5))) == mixed[5:]


@pytest.mark.parametrize("line", [{"prompt": "x"}, [1], {"messages": [{"content": "no role"}]}, {"messages": 3}])
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, line: Any) -> None:
    """With its number and what is allowed."""
    path = write(tmp_path / "a.jsonl", lesson(0), line)
    with pytest.raises(UserError, match=r"line 2 of '.*a\.jsonl' is no conversation .* allowed: JSON objects"):
        list(iterate_file(path))
    with pytest.raises(UserError, match=r"cannot read '.*b\.jsonl'"):
        list(iterate_file(tmp_path / "b.jsonl"))
    (tmp_path / "c.jsonl").write_text("\n")
    with pytest.raises(UserError, match="holds no conversation"):
        list(iterate_file(tmp_path / "c.jsonl"))


def test_training_from_a_file(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Each chunk is a step of the model, and the loss falls."""
    small = {"model": {"dtype": "float32", "lora": None}, "engine": {"kv_bytes": 2**22}}
    model: TrainableModel[object] = TrainableModel(
        name="m", project="p", base_model=str(tiny_model_folder), base_path=str(tmp_path), _internal_config=small
    )
    path = write(tmp_path / "a.jsonl", *[lesson(1)] * 6)

    async def main() -> None:
        async with LocalBackend(path=tmp_path) as backend:
            await model.register(backend)
            metrics = await train_sft_from_file(model, path, epochs=2, batch_size=1, peak_lr=1e-2, chunk_size=3)
            assert await model.get_step() == 4 and metrics[-1]["train/nll"] < metrics[0]["train/nll"] / 2
            more = await train_sft_from_file(model, path, 2, 1, 1e-3, "cosine", 0.0, 9, 11, None, True, 1)
            assert [each["train/batches"] for each in more] == [2.0] and await model.get_step() == 5

    asyncio.run(main())
