"""Attempts as a judge is shown them, and back."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from ludus.rewards.judge.attempts import (
    Attempt,
    Conversation,
    estimated_tokens,
    num_shared_messages,
    plain_message,
    read_attempts,
    render,
)

ASK = {"role": "user", "content": "What is 2+2?"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TEXT = st.text() | st.sampled_from(["</trajectory>", '<trajectory id="2">', "<context>\n", "\n</history>", "\\u003c"])


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def attempt(*messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = ()) -> Attempt:
    return Attempt((Conversation(messages, tools),))


def shown(*attempts: Attempt, max_tokens: int = 100_000) -> str:
    judge_prompt = render(attempts, max_tokens=max_tokens)
    return judge_prompt.text_of(range(len(attempts)), [str(i + 1) for i in range(len(attempts))])


def test_what_all_begin_with_is_shown_once() -> None:
    """The shared messages are the context, the rest is inside the tags."""
    text = shown(attempt(ASK, said("4")), attempt(ASK, said("five")))
    assert text == (
        '<context>\n[{"role": "user", "content": "What is 2+2?"}]\n</context>\n\nTrajectories:\n\n'
        '<trajectory id="1">\n[{"role": "assistant", "content": "4"}]\n</trajectory>\n\n'
        '<trajectory id="2">\n[{"role": "assistant", "content": "five"}]\n</trajectory>'
    )


def test_a_lone_attempt_keeps_its_replies_to_itself() -> None:
    """Only what stood before its first reply is context."""
    assert num_shared_messages([attempt(ASK, said("4"), ASK)]) == 1
    assert num_shared_messages([attempt(ASK, said("4")), attempt(ASK, said("4"), ASK)]) == 2
    assert num_shared_messages([attempt(ASK), attempt(said("4"))]) == 0


def test_tools_stand_once_where_all_have_the_same() -> None:
    """Otherwise each attempt says its own."""
    same = shown(attempt(ASK, said("4"), tools=(TOOL,)), attempt(ASK, said("5"), tools=(TOOL,)))
    assert same.count("<available_tools>") == 1
    assert same.index("<available_tools>") < same.index("Trajectories:")
    own = shown(attempt(ASK, said("4"), tools=(TOOL,)), attempt(ASK, said("5")))
    assert own.count("<available_tools>") == 1
    assert own.index("<available_tools>") > own.index("Trajectories:")


def test_further_conversations_are_shown_too() -> None:
    """Those of sub-agents are judged with the attempt they belong to."""
    whole = Attempt((Conversation((ASK, said("4"))), Conversation((said("helper"),)), Conversation((said("other"),))))
    text = shown(whole, attempt(ASK, said("5")))
    assert '<history number="2">\n[{"role": "assistant", "content": "helper"}]\n</history>' in text
    assert '<history number="3">' in text
    assert read_attempts(text)["1"] == whole


@given(st.lists(st.lists(TEXT, max_size=4), min_size=1, max_size=4), st.lists(st.lists(TEXT), max_size=2))
def test_what_is_rendered_can_be_read_back(lists: list[list[str]], further: list[list[str]]) -> None:
    """Whatever agents wrote, tags of ours included: nobody can step out of their own trajectory."""
    histories = tuple(Conversation(tuple(map(said, texts))) for texts in further)
    attempts = [Attempt((Conversation((ASK, *map(said, texts))), *histories)) for texts in lists]
    text = shown(*attempts)
    assert list(read_attempts(text).values()) == attempts
    assert text.count("</trajectory>") == len(attempts)


def test_long_texts_lose_their_middle_and_say_so() -> None:
    """Two attempts and the context fit into the budget; what fits is left alone."""
    long, short = attempt(ASK, said("a" * 90_000 + "b" * 90_000)), attempt(ASK, said("4"))
    judge_prompt = render([long, short], max_tokens=2000)
    assert judge_prompt.tokens_of((0, 1)) <= 2000
    assert "characters left out] …" in judge_prompt.attempts[0]
    assert judge_prompt.attempts[0].startswith('[{"role": "assistant", "content": "aaaa')
    assert judge_prompt.attempts[0].endswith('bbbb"}]')
    assert judge_prompt.attempts[1] == '[{"role": "assistant", "content": "4"}]'


def test_too_many_messages_lose_their_middle_too() -> None:
    """When short texts are not enough, whole messages are left out, and counted."""
    judge_prompt = render([attempt(ASK, *(said(f"step {i}") for i in range(1000))), attempt(ASK)], max_tokens=1000)
    assert estimated_tokens(judge_prompt.attempts[0]) <= 500
    assert "step 0" in judge_prompt.attempts[0]
    assert "step 999" in judge_prompt.attempts[0]
    assert "messages" in judge_prompt.attempts[0]


def test_a_long_context_gets_half_of_the_room() -> None:
    """The task itself is cut as well, before it leaves none for the attempts."""
    task = {"role": "user", "content": "x" * 30_000}
    judge_prompt = render([attempt(task, said("a" * 9000)), attempt(task, said("b" * 9000))], max_tokens=3000)
    assert estimated_tokens(judge_prompt.context) <= 1500
    assert judge_prompt.tokens_of((0, 1)) <= 3000


def test_images_are_named_and_empty_fields_left_out() -> None:
    """A judge of text is not sent a megabyte of base64."""
    url = "data:image/png;base64," + "A" * 1000
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}], "name": None}
    assert plain_message(message) == {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "[image/png, 1022 characters]"}}],
    }
