"""The verdict on every chat template that the `trl` package ships, written down with its reason.

1. Each template forks for the constructs that stand here, and for no others.
2. What is predicted happens: replayed through the recorder, the same requests fork for the same reasons.
3. Watching a template changes none of its text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ludus.checks.doctor.abilities import probe
from ludus.checks.doctor.conversation import random_conversation
from ludus.checks.doctor.examine import examine
from ludus.checks.doctor.replay import ReplayResult, Subject, replay
from ludus.checks.doctor.source import WatchedTemplate
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.text.chat import ChatText
from ludus.types import ChatRequest, ForkReason, Message, Sampling
from tests.checks.doctor.conftest import trl_templates

NUM_CONVERSATIONS = 8
"""Enough that every construct below turns up with seed 0; 120 find no others."""
RARE = {"gptoss": 30, "muse_glimmer": 30}
"""Templates with constructs that few conversations meet."""

# Nothing of a message depends on another one, and what is no message (tools, a default system text) stands still.
EXACT = (
    *("cohere", "gemma", "gemma3", "idefics3", "lfm2", "lfm2_v2", "llama3", "llama3_1", "llava_next", "phi3", "phi3_5"),
    *("qwen2_5", "qwen2_5_vl", "qwen3_instruct_2507", "qwen3_vl", "smolvlm"),
    # Shows no thinking beside calls, and none elsewhere; results follow the calls, which are the whole reply.
    "gemma4_v2",
    # Shows thinking wherever it stands (`preserve_thinking` by default).
    "qwen3_8",
)
# Thinking is shown only behind the last question (a `last_query_index` of some kind), or after no later reply.
STRIPPED = (
    *("lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "qwen3", "qwen3_5_think", "qwen3_6"),
    *("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"),
    # The empty thinking block of the generation prompt is not shown again.
    "qwen3_5_nothink",
)
# Training templates of trl's show a reply as the original does, unless they stand here or below.
SHOW_ALL_THINKING = ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")

EXPECTED: dict[str, set[str]] = {
    **{name: set() for name in EXACT},
    **{name: {"reasoning_stripped"} for name in STRIPPED},
    # All system messages are gathered in the first block, so a late one changes it.
    "cohere2": {"system_moved"},
    # The same; and a reply is cut at '</think>' wherever it is shown, though the prompt opened the block.
    "deepseek_r1_distill": {"system_moved", "reasoning_stripped"},
    "deepseekv3": {"system_moved", "reasoning_stripped"},
    # trl removed the cut: thinking that stands in the content stays.
    "deepseek_r1_distill_training": {"system_moved"},
    # Text beside a call is shown behind its result; thinking is shown behind the last question only.
    **{name: {"reply_split", "reasoning_stripped"} for name in ("gemma4", "gemma4_v3", "gemma4_v4")},
    # The same; and that such text ends a turn depends on whether the model goes on after it.
    **{name: {"reply_split", "reasoning_stripped", "position"} for name in ("gemma4_v5", "diffusion_gemma")},
    # Thinking behind the last question only; everywhere else, and without thinking, an empty block is shown.
    "glm4moe": {"reasoning_stripped", "thinking_added"},
    # Thinking is dropped once a final answer follows, and so is text beside a call, which is shown as thinking; a reply
    # cut inside the header of its message is content, and gets another header; the prompt holds the date.
    "gptoss": {"reasoning_stripped", "position", "reply_split", "date"},
    "llama3_2": {"date"},
    # Any system message, a late one too, takes the place of the default one at the start; which holds the date.
    "muse_glimmer": {"system_moved", "date"},
    # An empty block is shown for a reply that did not think.
    "qwen3_training": {"thinking_added"},
    **{f"{name}_training": set() for name in SHOW_ALL_THINKING},
}


def expected(name: str) -> set[str]:
    known = EXPECTED.get(name, EXPECTED.get(name.removesuffix("_training")))
    assert known is not None, f"{name} is new in trl: run the doctor on it, and write its verdict down with the reason"
    return known


@pytest.mark.parametrize("name", trl_templates())
def test_verdict(subject: Callable[[str], Subject], name: str) -> None:
    """The doctor finds the constructs that are known of a template, proves each, and breaks none of its laws."""
    found = examine(
        subject(name), name=name, num_conversations=RARE.get(name.removesuffix("_training"), NUM_CONVERSATIONS)
    )
    constructs = set(found.counts) - {"exact", "refused"}
    assert constructs == expected(name)
    assert {proof.construct for proof in found.forks} == constructs
    assert found.is_exact() == (not constructs)
    assert found.is_exact(tuple(constructs))
    for proof in found.forks:
        assert proof.divergence.seen != proof.divergence.shown
        assert proof.divergence.tag is not None
        assert len(proof.messages) <= 5


@pytest.mark.parametrize("name", trl_templates())
def test_prediction_comes_true(
    chat_text: Callable[[str], ChatText], subject: Callable[[str], Subject], name: str
) -> None:
    """Recorder and scripted engine fork where the doctor says so, for the reason that it says, and nowhere else."""
    text, patient = chat_text(name), subject(name)
    able = probe(patient.template)
    num_checked = 0
    for number in range(3):
        replayed = replay(patient, random_conversation(random.Random(number), able))
        replayed = _as_read(replayed)
        reasons, seen = asyncio.run(_replay(text, replayed))
        assert reasons == [None if step.outcome == "exact" else step.outcome for step in replayed.steps]
        for step, decoded in zip(replayed.steps, seen, strict=True):
            if step.outcome == "exact":
                assert decoded.endswith(step.turn.reply_text + step.added)
        num_checked += len(reasons)
    assert num_checked > 0 or all(written.is_assumed for written in replayed.written)


def _as_read(replayed: ReplayResult) -> ReplayResult:
    """The steps before the first reply that the parser does not read as it was meant: beyond it nothing is promised."""
    steps = [step for step in replayed.steps if not step.is_assumed and step.outcome != "refused"]
    return ReplayResult(steps, replayed.written)


async def _replay(text: ChatText, replayed: ReplayResult) -> tuple[list[ForkReason | None], list[str]]:
    """For each step the fork in the record, and what the engine was given as text."""
    turns = [step.turn for step in replayed.steps]
    engine = ScriptedEngine([*(turn.reply_text for turn in turns), "."], text.tokenizer)
    session = Recorder(engine, text).open(SessionSpec("s"))
    requests = [turn.messages for turn in turns] + [step.messages for step in replayed.steps[-1:]]
    echoes: list[Message] = []
    forks = []
    for idx, asked in enumerate(requests):
        messages = _echoed(asked, echoes)
        tools = replayed.steps[0].turn.tools
        stops = idx < len(turns) and turns[idx].reply_text.endswith(tuple(_stop_texts(text)))
        length = None if idx == len(turns) or stops else len(text.tokenizer.encode(turns[idx].reply_text))
        request = ChatRequest(messages, tools, Sampling(max_new_tokens=length))
        (turn,) = await session.complete(request)
        echoes.append(turn.reply)
        forks.append(turn.fork)
    return forks[1:], [text.tokenizer.decode(call.prompt_ids) for call in engine.calls[1:]]


def _stop_texts(text: ChatText) -> list[str]:
    return [text.tokenizer.decode((token,)) for token in text.tokenizer.stop_ids]


def _echoed(asked: tuple[Message, ...] | list[Message], echoes: list[Message]) -> tuple[Message, ...]:
    """The messages as an agent sends them that echoes what it got, ids of calls included."""
    replies = iter(echoes)
    messages: list[Message] = []
    ids: list[str] = []
    for message in asked:
        if message.role == "assistant":
            messages.append(next(replies))
            ids = [call.id for call in messages[-1].tool_calls]
        else:
            is_result = message.role == "tool"
            messages.append(replace(message, tool_call_id=ids.pop(0)) if is_result else message)
    return tuple(messages)


@pytest.mark.parametrize("name", trl_templates())
def test_watching_changes_nothing(subject: Callable[[str], Subject], name: str) -> None:
    """A template with a line for every tag writes what it wrote before, and every piece of it comes from a tag."""
    template = subject(name).template
    watched = WatchedTemplate(template.environment, template.source)
    for messages in (
        [Message("user", "Hi")],
        [Message("user", "Hi"), Message("assistant", "Yo"), Message("user", "?")],
    ):
        writing = watched.render(template.values(messages))
        assert writing.text == template.render(messages)
