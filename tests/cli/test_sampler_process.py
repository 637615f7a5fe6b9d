"""The process that answers for a run, started and asked as the page does it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.sampler_process import SamplerProcess
from ludus.errors import UserError
from ludus.runs.store import RunStore
from ludus.runs.watch.question import Question, Said
from tests.rewards.conftest import Endpoint, completion, endpoint  # noqa: F401


def test_a_model_served_elsewhere_is_asked_by_the_process_with_the_key_of_its_variable(
    endpoint: Endpoint,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the command line says of it reaches the process; its key is read there."""
    RunStore.create(tmp_path, "run", "name: run\nmodel: {path: nowhere}\n").close()
    monkeypatch.setenv("MINE", "a-key-of-mine")
    endpoint.answers = [completion("Hello.")]
    question = Question(session="s", group="g", model="big", messages=(Said(role="user", content="Hi"),))
    process = SamplerProcess([f"big={endpoint.base_url}"], "MINE")
    assert process.elsewhere == {"big": endpoint.base_url}

    async def ask() -> list[dict[str, Any]]:
        return [event async for event in process.answer(tmp_path / "run", question)]

    try:
        (event,) = asyncio.run(ask())
    finally:
        process.close()
    assert event["done"] and event["text"] == "Hello." and event["tokens"] is None
    assert endpoint.keys == ["Bearer a-key-of-mine"]


def test_what_names_no_model_is_refused_before_anything_is_served() -> None:
    with pytest.raises(UserError, match="NAME=ADDRESS"):
        SamplerProcess(["big=127.0.0.1"])
