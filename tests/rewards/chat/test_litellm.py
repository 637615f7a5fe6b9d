"""Providers that only LiteLLM knows, with a stand-in of its one function; the real one needs an environment apart."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import BackendError, UserError
from ludus.rewards.chat.base import ChatAnswer, ChatModel, Usage
from ludus.rewards.chat.resolve import resolve_chat_model

STAND_IN = """
from types import SimpleNamespace

asked = []


class Refused(Exception):
    status_code = 401


async def acompletion(**arguments):
    asked.append(arguments)
    if arguments["model"] == "bedrock/refused":
        raise Refused("no such key")
    if arguments["model"] == "bedrock/broken":
        raise ConnectionError("down")
    choice = SimpleNamespace(message=SimpleNamespace(content="yes"), finish_reason="stop")
    usage = SimpleNamespace(prompt_tokens=7, completion_tokens=2)
    return SimpleNamespace(choices=[choice], usage=usage, _hidden_params={"response_cost": 0.25})
"""


@pytest.fixture
def litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "litellm.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    yield importlib.import_module("litellm")
    sys.modules.pop("litellm", None)


def ask(model: ChatModel) -> ChatAnswer:
    return asyncio.run(model.ask([{"role": "user", "content": "?"}], name="form", schema={"type": "object"}))


def test_a_provider_that_litellm_knows(litellm: Any) -> None:
    """The name goes through as it is, with what the caller said; the cost comes back."""
    model = resolve_chat_model("bedrock/x", {"temperature": 0, "api_key": "k"})
    assert ask(model) == ChatAnswer("yes", Usage(1, 0, 7, 2, 0.25))
    (asked,) = litellm.asked
    assert (asked["model"], asked["temperature"], asked["api_key"]) == ("bedrock/x", 0, "k")
    assert asked["response_format"]["json_schema"]["name"] == "form"
    assert model.identity == {"litellm": "bedrock/x", "parameters": {"temperature": 0}}


@pytest.mark.parametrize(("name", "kind"), [("bedrock/broken", BackendError), ("bedrock/refused", UserError)])
def test_its_errors_are_ours(litellm: Any, name: str, kind: type[Exception]) -> None:
    """A wrong key is the user's, a server that is down is not."""
    with pytest.raises(kind, match=name):
        ask(resolve_chat_model(name))
