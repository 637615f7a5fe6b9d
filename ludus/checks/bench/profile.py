"""Profiles a step: attributes the time of every Python call and torch operation to one of a few parts.

Knows: torch's profiler, which files and operations belong to which part.  Knows not: what is run.
Invariant: the own time of a call (without the calls inside it) belongs to exactly one part, so that parts and remainder
add up to the profiled time.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

OTHER = "other"


class Event(Protocol):
    """A call in the tree that torch's profiler records."""

    name: str
    duration_time_ns: int
    start_tid: int
    children: Sequence[Event]


@dataclass(frozen=True, slots=True)
class ProfileRules:
    """Rules that assign a call to a part, by the marks of the call and of the calls around it."""

    marks: Mapping[str, str]
    """Patterns for names of calls, by mark."""
    rules: Sequence[tuple[str, str]]
    """Parts, and the marks that each needs, separated by spaces; the first rule whose marks are all present decides."""

    def marks_of(self, name: str) -> frozenset[str]:
        """The marks of a call with this name."""
        return frozenset(mark for mark, pattern in self.marks.items() if re.search(pattern, name))

    def part_of(self, found: frozenset[str]) -> str:
        return next((part for part, needed in self.rules if found.issuperset(needed.split())), OTHER)


_TABLES = tomllib.loads(Path(__file__).with_name("parts.toml").read_text(encoding="utf-8"))
SAMPLING, TRAINING = (
    ProfileRules({**_TABLES["marks"], **table["marks"]}, [*table["parts"].items()])
    for table in (_TABLES["sampling"], _TABLES["training"])
)

_STOP = re.compile(r"bench/profile\.py\(\d+\): stop$")
_OWN = re.compile(r"bench/profile\.py\(|torch/profiler/|torch/autograd/profiler\.py")


class Profiler:
    """Records the thread that starts it, until that thread stops it."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], with_stack=True)
        self._started_at = 0.0
        self._wall_s = 0.0

    def start(self) -> None:
        self._profile.start()
        self._started_at = time.perf_counter()

    def stop(self) -> None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # what is queued on a card belongs to the steps
        self._wall_s = time.perf_counter() - self._started_at
        self._profile.stop()

    def shares(self, parts: ProfileRules, *, num_steps: int) -> dict[str, Any]:
        """Milliseconds per step and share of the recorded time by part, the largest first, time without a rule last.

        `recorded_share`: share of the wall time between start and stop that was recorded.
        """
        recorder: Any = self._profile.profiler
        assert recorder is not None, "the profile has been started and stopped"
        roots = of_one_thread(recorder.kineto_results.experimental_event_tree())
        own_s = own_seconds(roots, parts)
        recorded_s = sum(own_s.values())
        rows = [
            {"part": part, "ms_per_step": taken_s / num_steps * 1e3, "share": taken_s / recorded_s}
            for part, taken_s in sorted(own_s.items(), key=lambda item: (item[0] == OTHER, -item[1]))
        ]
        return {
            "profile": rows,
            "ms_per_step": self._wall_s / num_steps * 1e3,
            "steps": num_steps,
            "recorded_share": recorded_s / self._wall_s,
        }


def of_one_thread(roots: Sequence[Event]) -> list[Event]:
    """The trees of the thread that stopped the profiler; other threads wait, or are not of interest."""
    left, stopped = list(roots), set[int]()
    for event in left:
        left.extend(event.children)
        if _STOP.search(event.name):
            stopped.add(event.start_tid)
    return [root for root in roots if root.start_tid in stopped]


def own_seconds(roots: Iterable[Event], parts: ProfileRules) -> dict[str, float]:
    """Seconds by part of the own times of all calls in the trees; the profiler's own calls are left out."""
    total_ns: dict[str, int] = {}
    marks_of: dict[str, frozenset[str]] = {}
    left: list[tuple[Event, frozenset[str]]] = [(root, frozenset()) for root in roots]
    while left:
        event, around = left.pop()
        if _OWN.search(event.name):
            continue
        if event.name not in marks_of:
            marks_of[event.name] = parts.marks_of(event.name)
        marks = around | marks_of[event.name]
        # negative if torch places a named block below the short call that opened it; the sum of the part is still right
        own_ns = event.duration_time_ns - sum(child.duration_time_ns for child in event.children)
        part = parts.part_of(marks)
        total_ns[part] = total_ns.get(part, 0) + own_ns
        left.extend((child, marks) for child in event.children)
    return {part: nanoseconds / 1e9 for part, nanoseconds in total_ns.items()}
