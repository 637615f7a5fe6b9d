"""Which names a model answers to: the rule of `episodes/names.py`, without weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.names import UNNAMED, ModelNames
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError
from ludus.text.chat import ChatText

NAMES = ModelNames("agent", ("org/agent",), ("gpt-*", "base"))


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        ("agent@12", 12),
        ("default@0", 0),
        ("org/agent@3", 3),
        ("agent", None),
        ("other@12", None),
        ("agent@", None),
        ("agent@-1", None),
        ("agent@1.5", None),
        ("agent@latest", None),
        (f"agent@{'9' * 5000}", None),  # Python refuses to read it as a number
    ],
)
def test_steps_of_the_own_model(asked: str, step: int | None) -> None:
    """A step is a number behind one of the model's own names."""
    assert NAMES.step_of(asked) == step


def test_what_is_listed() -> None:
    """Every name once, the model's own first; patterns are no names."""
    assert UNNAMED.listed() == ("default",)
    assert NAMES.listed(["base", "agent@2"]) == ("agent", "default", "org/agent", "base", "agent@2")


class Others:
    """The base, and step 2."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def names(self) -> Sequence[str]:
        return ["base", "agent@2"]

    async def find(self, session: Session, name: str) -> Session | None:
        step = 0 if name in ("base", "org/base") else session.names.step_of(name)
        if step is None:
            return None
        if step not in (0, 2):
            raise session.names.unknown(name, session.model_list, why="it was not saved")
        return self.recorder.open(SessionSpec(f"{session.id}@{step}"))


def test_who_is_asked(tokenizer_folder: Path) -> None:
    """The own model under its names and in the place of others; other weights under theirs; nobody else."""
    text = ChatText.load(tokenizer_folder)
    engine = ScriptedEngine([], text.tokenizer)
    recorder = Recorder(engine, text, names=NAMES, others=Others(Recorder(engine, text)))
    session = recorder.open(SessionSpec("s"))

    async def asked(name: str) -> str:
        return (await session.named(name)).id

    async def main() -> None:
        for name in ("agent", "default", "org/agent", "gpt-4o", "base"):  # `base` is what the user says it is
            assert await asked(name) == "s"
        assert [await asked(name) for name in ("org/base", "agent@2", "default@0")] == ["s@0", "s@2", "s@0"]
        for name, why in (("agent@3", "it was not saved"), ("o3", "no model here is called so")):
            with pytest.raises(AgentError, match=f"{name}' cannot answer: {why}.*; there is agent, default") as raised:
                await asked(name)
            assert (raised.value.status, raised.value.param) == (404, "model")
        session.close("over")
        with pytest.raises(AgentError, match="closed"):
            await asked("agent@2")

    asyncio.run(main())
    assert recorder.model_list() == session.model_list == ("agent", "default", "org/agent", "base", "agent@2")
