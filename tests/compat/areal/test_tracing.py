"""What AReaL's workflows time and count, and what they log with."""

from __future__ import annotations

import asyncio
import logging

from transformers import AutoTokenizer

from ludus.compat.areal.utils import logging as areal_logging
from ludus.compat.areal.utils import stats_tracker
from ludus.compat.areal.utils.hf_utils import apply_chat_template
from ludus.compat.areal.utils.perf_tracer import (
    Category,
    PerfTraceCategory,
    atrace_scope,
    atrace_session_phase,
    session_context,
    trace_perf,
    trace_scope,
    trace_session,
)
from ludus.compat.realhf.base import constants
from ludus.compat.realhf.base import logging as realhf_logging
from ludus.runs.spans import SpanLog, collect_spans


@trace_perf("sum", category=Category.COMPUTE)
def add(a: int, b: int) -> int:
    return a + b


@session_context()
@trace_session("reward")
async def reward(value: float) -> float:
    async with atrace_session_phase("generate", start_payload={"n": 1}), atrace_scope("inside"):
        return value


def test_what_is_timed_is_a_span_of_the_episode() -> None:
    """Blocks and functions, async or not; they return what they return."""
    log = SpanLog()
    with collect_spans(log), trace_scope("whole", category="comm", args={"x": 1}):
        assert add(1, 2) == 3 and asyncio.run(reward(0.5)) == 0.5
    assert [span.name for span in log.snapshot()] == ["sum", "inside", "generate", "reward", "session", "whole"]
    assert PerfTraceCategory is Category
    assert log.snapshot()[-1].inputs == {"x": 1}


def test_outside_of_an_episode_nothing_is_kept() -> None:
    """Nor does anything fail."""
    assert add(1, 2) == 3
    stats_tracker.scalar(reward=1.0)
    with stats_tracker.record_timing("step"):
        pass


def test_loggers_are_pythons() -> None:
    """By name; the colours that realhf asks for are a reader's own."""
    assert areal_logging.getLogger("Mine") is logging.getLogger("Mine")
    assert realhf_logging.getLogger("Mine", "colored") is logging.getLogger("Mine")
    assert constants.trial_name().startswith("process-") and constants.experiment_name()


def test_a_conversation_in_the_tokenizers_template(tiny_model_folder: object) -> None:
    """As token ids, or as text."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    messages = [{"role": "user", "content": "Hello"}]
    text = apply_chat_template(tokenizer, messages, tokenize=False, add_generation_prompt=True)
    ids = apply_chat_template(tokenizer, messages, add_generation_prompt=True)
    assert "Hello" in text and tokenizer.decode(ids) == text
