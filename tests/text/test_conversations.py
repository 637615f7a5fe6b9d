"""Whatever is said, in whatever template: the tokens are those sampled, and the text is the template's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer
from ludus.types import Message, ToolSpec
from tests.text.dialogue import REASONS, STOPS, Dialogue

LoadTemplate = Callable[..., ChatTemplate]
ADD = ToolSpec("add", "Adds.", {"type": "object"})
WORDS = st.text(st.sampled_from("ab<>|{}é \n"), max_size=8)
SPOKEN = st.one_of(WORDS, st.sampled_from(["<|im_end|>", "<|im_start|>user\n", "</s>", "<tool_call>", "ludusmark0x"]))


@given(
    name=st.sampled_from(["chatml", "chatml-tools", "qwen2", "qwen3", "gemma", "llama3", "mistral", "lastonly"]),
    turns=st.lists(st.tuples(SPOKEN, WORDS, st.booleans()), min_size=1, max_size=5),
    opening=SPOKEN,
)
def test_any_conversation(
    load_template: LoadTemplate,
    tokenizer: Tokenizer,
    name: str,
    turns: list[tuple[str, str, bool]],
    opening: str,
) -> None:
    """Through whole conversations, the tokens decode to what was proven, and it is what the template shows."""
    stop = STOPS.get(name, "<|im_end|>")
    dialogue = Dialogue(load_template(name), stop=stop)
    messages = [Message("user", opening)]
    ids = list(tokenizer.encode(dialogue.ask(*messages)))
    for spoken, answer, is_cut in turns:
        sampled = answer if is_cut else answer + stop
        reply = dialogue.sample(sampled)
        messages += [reply, Message("user", spoken)]
        num_before = tokenizer.num_encoded_chars
        added = dialogue.extend(*messages)
        assert added not in REASONS
        ids += [*tokenizer.encode(sampled), *tokenizer.encode(added, after=ids[-1])]
        assert tokenizer.num_encoded_chars - num_before == len(sampled) + len(added)
        assert tokenizer.decode(ids) == dialogue.seen
        shown = dialogue.template.render(messages)
        assert "".join(dialogue.seen.split()) == "".join(shown.split())
    if all(answer == answer.strip() and answer for _, answer, _ in turns) and name != "mistral":
        assert dialogue.seen == shown


@given(
    name=st.sampled_from(["chatml-tools", "qwen2", "qwen3"]),
    turns=st.lists(
        st.tuples(
            WORDS,
            st.lists(st.dictionaries(st.sampled_from("ab"), st.one_of(st.integers(), WORDS), max_size=2), max_size=2),
            st.booleans(),
        ),
        max_size=3,
    ),
)
def test_any_calls(load_template: LoadTemplate, name: str, turns: list[tuple[str, list[dict[str, Any]], bool]]) -> None:
    """Through conversations with calls in any spelling, sampled text stays and the template's additions follow."""
    dialogue = Dialogue(load_template(name), tools=(ADD,))
    messages = [Message("user", "Hi")]
    expected = dialogue.ask(*messages)
    for text, calls, is_cut in turns:
        spelled = [json_text(call, compact=idx % 2 == 0) for idx, call in enumerate(calls)]
        bodies = [f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>' for arguments in spelled]
        sampled = text + "".join(bodies) + ("" if is_cut else "<|im_end|>")
        reply = dialogue.sample(sampled)
        assert [call.arguments for call in reply.tool_calls] == spelled
        results = [Message("tool", "2", tool_call_id=call.id) for call in reply.tool_calls]
        messages += [reply, *(results or [Message("user", "More")])]
        added = dialogue.extend(*messages)
        assert added not in REASONS
        expected += sampled + added
        shown = dialogue.template.render(messages, (ADD,))
        assert shown.endswith(added.removeprefix("\n"))
    assert dialogue.seen == expected


def json_text(value: Mapping[str, Any], *, compact: bool) -> str:
    return json.dumps(value, separators=(",", ":")) if compact else json.dumps(value, ensure_ascii=False, indent=1)
