"""An episode as bytes and back: what a record holds, and what stands in for what it does not hold."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.errors import UserError
from ludus.runs.codec import decode_episode, encode_episode
from ludus.types import Episode, Span


def test_the_reward_of_the_episode_survives(full_episode: Episode) -> None:
    """What the agent returned is kept beside the rewards of turns; None stays None."""
    assert decode_episode(encode_episode(full_episode)).reward == full_episode.reward == 0.1
    assert decode_episode(encode_episode(replace(full_episode, reward=None))).reward is None


def test_how_long_the_prompt_took_survives(full_episode: Episode) -> None:
    """Though two samples that differ in it alone are equal: it is no part of what was sampled."""
    first, second = decode_episode(encode_episode(full_episode)).session.turns
    assert first.sampled.prefill_s == 0.25 and second.sampled.prefill_s is None
    assert first.sampled == replace(first.sampled, prefill_s=None)


def test_that_rewards_are_returns_survives(full_episode: Episode) -> None:
    """Whether the agent discounted itself is kept."""
    for has_returns in (True, False):
        episode = replace(full_episode, has_returns=has_returns)
        assert decode_episode(encode_episode(episode)) == episode


def test_what_messagepack_cannot_hold_is_kept_too(make_episode: Callable[..., Episode]) -> None:
    """Integers beyond 64 bits, halves of surrogate pairs, NaN and infinities, alone and together."""
    for values in (
        {"big": 2**100, "negative": -(2**70)},
        {"half \ud83d": "\ud83d"},
        {"big": -math.inf, "\udc00": 2**64},
    ):
        assert decode_episode(encode_episode(make_episode(1, metadata=values))).metadata == values
    for values in ({"nan": math.nan}, {"nan": math.nan, "half": "\ud83d"}):
        assert math.isnan(decode_episode(encode_episode(make_episode(1, metadata=values))).metadata["nan"])


def test_what_has_no_end_is_cut_short(make_episode: Callable[..., Episode]) -> None:
    """Values that hold themselves, that are nested for ever, integers of thousands of digits: the episode is kept."""
    deep: Any = "inside"
    for _ in range(5000):
        deep = {"a": [deep]}
    circle: dict[str, Any] = {}
    circle["again"] = circle
    kept = decode_episode(encode_episode(make_episode(1, metadata={"big": 10**5000, "deep": deep, "circle": circle})))
    assert kept.metadata["big"] == hex(10**5000)
    assert "…" in repr(kept.metadata["deep"]) and "inside" not in repr(kept.metadata["deep"])
    assert repr(kept.metadata["circle"]).count("again") == 200


def test_threads_read_their_first_records_together(full_episode: Episode, tmp_path: Path) -> None:
    """In processes that have read none yet. Types that msgspec first met there ended one in four of them."""
    (tmp_path / "record").write_bytes(encode_episode(full_episode))
    script = (
        "import os, sys, threading\n"
        "from ludus.runs.codec import decode_episode\n"
        "record = open(sys.argv[1], 'rb').read()\n"
        "sys.setswitchinterval(1e-6)\n"
        "barrier = threading.Barrier(8)\n"
        "def read():\n"
        "    barrier.wait()\n"
        "    decode_episode(record)\n"
        "for _ in range(12):\n"
        "    if os.fork() == 0:\n"
        "        threads = [threading.Thread(target=read) for _ in range(8)]\n"
        "        [each.start() for each in threads]\n"
        "        [each.join() for each in threads]\n"
        "        os._exit(0)\n"
        "    print(os.wait()[1])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "record")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["0"] * 12, result.stderr


def test_what_is_no_record_is_said() -> None:
    """Other bytes, other kinds and lists without end are an error of the user's files."""
    for content in (b"", b"\x91" * 100_000, b"[" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x80", b'["a"]'):
        with pytest.raises(UserError, match="none that Ludus writes"):
            decode_episode(content)


def test_numbers_of_foreign_classes_are_numbers(make_episode: Callable[..., Episode]) -> None:
    """Scalars and arrays of numpy, and what is derived from Python's own, come back as Python's own."""
    metadata = {"float": np.float64(0.1), "int": np.int64(3), "array": np.arange(2), "enum": signal.SIGKILL}
    kept = decode_episode(encode_episode(make_episode(1, metadata=metadata))).metadata
    assert kept == {"float": 0.1, "int": 3, "array": [0, 1], "enum": 9}
    assert {type(value) for value in kept.values()} == {float, int, list}


def test_a_span_that_cannot_be_copied_is_kept(full_episode: Episode) -> None:
    """What a tool was given and gave may be anything; what JSON does not know is its repr."""
    held = {"lock": threading.Lock(), "text": "a"}
    span = Span(kind="tool", name="t", started_at=0.0, finished_at=1.0, inputs=held, outputs=None, error=None)
    (kept,) = decode_episode(encode_episode(replace(full_episode, spans=(span,)))).spans
    assert kept.inputs["text"] == "a" and "lock" in kept.inputs["lock"]
