"""The first minutes on a card: what is right, then how fast it is, part by part, and written down as it goes.

Knows: the parts (`gpu.toml`), their limits, the tests of `make test-gpu`, the other benches.  Knows not: terminals.
Invariants: whatever becomes of a part, those after it have their turn; the file of results is whole at any time.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from ludus.checks.bench.limited import Ended, run_limited
from ludus.checks.bench.pairs import Measured, Results
from ludus.checks.bench.results import result
from ludus.checks.bench.runner import CHECKOUT, PEERS_FOLDER, our_runner, peer_runner
from ludus.checks.bench.table import BENCHES
from ludus.checks.bench.workloads import (
    LearnWork,
    SampleWork,
    StepWork,
    TrainWork,
    chat_encoder,
    sample_batches,
    sums,
    train_rows,
    vocab_size,
)
from ludus.errors import BackendError, LudusError, UserError
from ludus.processes.files import write_whole
from ludus.processes.program import PROGRAM

TESTS = Path("tests") / "gpu" / "on_card.py"
_SHAPES = CHECKOUT / "bench" / "shapes"
_GAME = Path("recipes") / "guess" / "run.yaml"
# A part with less time than this could not even load what it needs.
_LEAST_S = 5.0
# Enough for the message and the origin of a failed test.
_LAST_LINES = 40
_TEST_LINE = re.compile(r"^\S+::(\S+) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)

EndName = Literal["running", "passed", "failed", "out of time", "not run"]


@dataclass(frozen=True, slots=True)
class Part:
    """Tests if there are names of some, else a bench if one is named, else the model of a shape is made."""

    name: str
    limit_s: float
    tests: tuple[str, ...] = ()
    """Functions in the file of tests."""
    bench: Literal["", "learn", "sample", "train", "step"] = ""
    """learn: the guessing game, with the model and the settings of its recipe."""
    shape: str = ""
    """Name of a file in bench/shapes: the model has this shape, and random weights."""
    peer: str = ""
    """Measured once after ours. '': nobody is."""
    requests: tuple[int, ...] = ()
    rows: tuple[int, int] = (8, 256)
    """Of the training bench: how many, and tokens of each."""
    checkpointing: bool = False
    settings: tuple[str, ...] = ()
    """KEY=VALUE of ours."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parts run."""

    folder: Path
    """Of results and models, absolute."""
    device: str = "cuda"
    checkout: Path = CHECKOUT
    shapes: Path = _SHAPES
    peers: Path = PEERS_FOLDER

    def model(self, part: Part) -> Path:
        return self.folder / "models" / part.shape


@dataclass(slots=True)
class Report:
    """The results so far, in a file that is replaced whenever something is added."""

    file: Path
    about: Mapping[str, Any]
    """The machine, its card, versions."""
    parts: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, name: str, ended: EndName = "running") -> None:
        self.parts.append({"part": name, "ended": ended})
        self._write()

    def add(self, **figures: Any) -> None:
        """Add to the part that was begun last."""
        self.parts[-1] |= figures
        self._write()

    def body(self) -> dict[str, Any]:
        return {"bench": "gpu", **self.about, "parts": self.parts}

    def _write(self) -> None:
        write_whole(self.file, json.dumps(self.body(), indent=1) + "\n")


def read_parts(names: Sequence[str] = ()) -> tuple[Part, ...]:
    """All parts in their order, or those named. Raises UserError for an unknown name."""
    with Path(__file__).with_name("gpu.toml").open("rb") as file:
        parts = TypeAdapter(tuple[Part, ...]).validate_python(tomllib.load(file)["parts"])
    unknown = sorted(set(names) - {part.name for part in parts})
    if unknown:
        raise UserError(f"no part {unknown[0]!r} of `ludus bench gpu`; known: {', '.join(each.name for each in parts)}")
    return tuple(part for part in parts if not names or part.name in names)


def run_parts(
    parts: Sequence[Part],
    place: Place,
    report: Report,
    *,
    seconds: float,
    on_begin: Callable[[str], object],
    on_end: Callable[[Part, Mapping[str, Any]], object],
) -> bool:
    """Run the parts within `seconds` together; returns whether all of them passed.

    on_begin: called with a part's name before it runs.  on_end: with it, and what the report says of it afterwards.
    """
    until = time.monotonic() + seconds
    for part in parts:
        left_s = until - time.monotonic()
        if left_s < _LEAST_S:
            report.begin(part.name, "not run")
            on_end(part, report.parts[-1])
            continue
        on_begin(part.name)
        report.begin(part.name)
        begun_at = time.monotonic()
        try:
            _run_part(part, place, report, min(part.limit_s, left_s))
        except LudusError as error:  # a part that fails is a result
            is_late = time.monotonic() - begun_at >= min(part.limit_s, left_s)
            report.add(ended="out of time" if is_late else "failed", said=str(error))
        report.add(seconds=round(time.monotonic() - begun_at, 1))
        on_end(part, report.parts[-1])
    return all(each["ended"] == "passed" for each in report.parts)


def _run_part(part: Part, place: Place, report: Report, limit_s: float) -> None:
    if part.tests:
        return report.add(**_run_tests(part, place, limit_s))
    if part.bench == "":
        return report.add(**_make_model(part, place, limit_s))
    begun_at = time.monotonic()
    work = _work(part, place)
    ours = our_runner(part.bench, work).run(limit_s=limit_s, folder=place.checkout)
    if part.bench == "learn":
        return report.add(ended="passed", **{name: each for name, each in ours.items() if name != "versions"})
    report.add(**_compared(part, ours, None))
    if part.peer:
        peer = peer_runner(part.peer, part.bench, work, place.peers)
        left_s = max(limit_s - (time.monotonic() - begun_at), _LEAST_S)
        report.add(**_compared(part, ours, peer.run(limit_s=left_s, folder=place.checkout)))
    return report.add(ended="passed")


def _run_tests(part: Part, place: Place, limit_s: float) -> dict[str, Any]:
    """How each test ended, and the last lines if one failed."""
    names = [f"{TESTS}::{name}" for name in part.tests]
    # unbuffered, so that what passed is known of tests that are ended at their limit
    command = [sys.executable, "-u", "-m", "pytest", "-v", "--tb=short", "-o", f"python_files={TESTS.name}", *names]
    done = run_limited(command, limit_s=limit_s, folder=place.checkout)
    tests = dict(_TEST_LINE.findall(done.out))
    said = {} if done.code == 0 else {"said": done.last_lines(_LAST_LINES)}
    return {"ended": _end_of(done), "tests": tests, **said}


def _make_model(part: Part, place: Place, limit_s: float) -> dict[str, Any]:
    """Make it in a process of its own, unless an earlier run did."""
    folder = place.model(part)
    if folder.is_dir():
        return {"ended": "passed"}
    draft = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)  # of a run that was broken off
    command = [*PROGRAM, "models", "random", str(place.shapes / f"{part.shape}.json"), str(draft)]
    done = run_limited(command, limit_s=limit_s, folder=place.checkout)
    if done.code == 0:
        draft.rename(folder)
        return {"ended": "passed"}
    return {"ended": _end_of(done), "said": done.last_lines(_LAST_LINES)}


def _end_of(done: Ended) -> EndName:
    if done.code is None:
        return "out of time"
    return "failed" if done.code else "passed"


def _compared(part: Part, ours: Results, peer: Results | None) -> dict[str, Any]:
    """The rows of a bench, as `ludus bench` has them."""
    found = result(part.bench, BENCHES[part.bench], Measured([ours], None if peer is None else [peer]))
    return {name: each for name, each in found.items() if name in ("rows", "card", "versions")}


def _work(part: Part, place: Place) -> LearnWork | SampleWork | TrainWork | StepWork:
    settings = (f"model.device={place.device}", *part.settings)
    if part.bench == "learn":
        return LearnWork(str(_GAME), settings, seed=0)
    model = place.model(part)
    if not model.is_dir():
        raise BackendError(f"{model} is not there: the part before that makes it has to pass")
    if part.bench == "sample":
        return SampleWork(str(model), settings, batches=sample_batches(chat_encoder(model), part.requests))
    if part.bench == "train":
        rows, _ = train_rows("dense", vocab_size(model), dense=part.rows)
        return TrainWork(str(model), settings, rows=rows, checkpointing=part.checkpointing)
    questions, answers = sums(0)
    return StepWork(str(model), settings, questions=questions, answers=answers)
