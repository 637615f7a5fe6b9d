"""Requests that name a turn, a raw prompt or an option become requests that say it all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ludus.episodes.graph import SessionGraph
from ludus.episodes.resolve import Resolver
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.text.template import ChatTemplate
from ludus.types import ChatRequest, Message
from tests.episodes.conftest import SetTable, user


def resolver(folder: Path, tmp_path: Path, variables: str) -> Resolver:
    """Of a session whose template reads these names."""
    template = tmp_path / "template.jinja"
    reads = "".join(f"{{{{ {name} }}}}" for name in variables.split())
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}" + reads)
    return Resolver(ChatText.load(folder, chat_template=str(template)), SessionGraph("s"))


@pytest.mark.parametrize(
    ("variables", "wishes", "arguments", "ignored"),
    [
        ("", {"reasoning_effort": "low", "thinking_budget": 9}, {}, ("reasoning_effort", "thinking_budget")),
        ("enable_thinking", {"reasoning_effort": "none"}, {"enable_thinking": False}, ()),
        ("thinking", {"reasoning_effort": "minimal"}, {"thinking": False}, ()),
        ("enable_thinking", {"thinking_budget": 9}, {"enable_thinking": True}, ("thinking_budget",)),
        ("reasoning_effort", {"reasoning_effort": "high"}, {"reasoning_effort": "high"}, ()),
        (
            "thinking_budget enable_thinking",
            {"reasoning_effort": "low", "thinking_budget": 9},
            {"enable_thinking": True, "thinking_budget": 9},
            (),
        ),
        (
            "enable_thinking",
            {"reasoning_effort": "low", "template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
            (),
        ),
        ("enable_thinking", {}, {}, ()),
    ],
)
def test_wishes_become_what_the_template_reads(
    tokenizer_folder: Path,
    tmp_path: Path,
    variables: str,
    wishes: dict[str, Any],
    arguments: dict[str, Any],
    ignored: tuple[str, ...],
) -> None:
    """Effort and budget are handed on by the names that are read; those that cannot act are named."""
    own, request = resolver(tokenizer_folder, tmp_path, variables), ChatRequest((user("Guess."),), **wishes)
    assert own.resolve(request).template_kwargs == arguments
    assert own.ignored_fields(request) == ignored


def test_variables_are_the_names_a_template_does_not_set_itself() -> None:
    """A name that is set in the template is not one of its arguments."""
    template = ChatTemplate("{% set thinking = 1 %}{{ thinking }}{{ messages }}{{ enable_thinking }}")
    assert "enable_thinking" in template.variables and "thinking" not in template.variables


def test_a_turn_is_continued_without_its_instructions(set_table: SetTable) -> None:
    """What was asked and the reply come first, this request's instructions before them; the tokens are extended."""

    async def main() -> None:
        table = set_table(["a", "b", "c"])
        first = await table.ask(Message("system", "Once."), user("one"), num_instructions=1)
        assert table.session.history(first.id) == (user("one"), first.reply)
        second = await table.ask(Message("system", "Once."), user("two"), num_instructions=1, continues=first.id)
        assert second.messages == (Message("system", "Once."), user("one"), first.reply, user("two"))
        assert (second.prefix, second.fork) == (first.id, None)
        third = await table.ask(user("three"), continues=second.id)
        assert third.messages == (user("one"), first.reply, user("two"), second.reply, user("three"))
        with pytest.raises(AgentError) as caught:
            await table.ask(user("four"), continues="chatcmpl-x")
        assert (caught.value.status, caught.value.code) == (404, "turn_not_found")
        assert table.session.history("chatcmpl-x") is None

    asyncio.run(main())


def test_a_raw_prompt_needs_no_template(set_table: SetTable) -> None:
    """The engine sees the text alone; what follows is text, whatever it looks like; no token is encoded twice."""

    async def main() -> None:
        table = set_table(["<think>so</think>", "it", "is"])
        first = await table.ask(prompt="Once")
        assert table.engine.calls[0].prompt_ids == table.text.tokenizer.encode("Once")
        assert (first.messages, first.reply) == ((user("Once"),), Message("assistant", "<think>so</think>"))
        path = table.session.snapshot().path_ids(first.node)
        second = await table.ask(prompt=(*path, 7))
        assert (second.prefix, second.follows, second.fork) == (first.id, first.id, None)
        third = await table.ask(prompt="Twice")
        assert (third.prefix, third.follows, third.fork) == (None, second.id, "edit")

    asyncio.run(main())


def test_prompts_are_counted_without_a_turn(set_table: SetTable) -> None:
    """The count is the length of the prompt that is then asked."""

    async def main() -> None:
        table = set_table(["a"])
        num_tokens = table.session.count_prompt_tokens(ChatRequest((user("Guess."),)))
        turn = await table.ask(user("Guess."))
        assert num_tokens == table.session.num_prompt_tokens(turn) == len(table.engine.calls[0].prompt_ids)
        assert table.session.stats().num_turns == 1

    asyncio.run(main())
