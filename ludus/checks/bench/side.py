"""Our side of a benchmark in a process of its own: `python -m ludus.checks.bench.side BENCH WORK.json`.

Prints one JSON object, the figures, as its last line.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from ludus.checks.bench.gateway import measure_gateway
from ludus.checks.bench.machine import versions
from ludus.checks.bench.overlap import measure_overlap
from ludus.checks.bench.publish import measure_publish, measure_reload
from ludus.checks.bench.replicas import measure_replicas
from ludus.checks.bench.sample import measure_sample, profile_sample
from ludus.checks.bench.step import measure_step
from ludus.checks.bench.trace import measure_trace
from ludus.checks.bench.train import measure_memory, measure_train, profile_train
from ludus.checks.bench.turns import measure as count_turns
from ludus.checks.bench.turns import rows
from ludus.checks.bench.workloads import TurnsWork, read_work


def measure_turns(work: TurnsWork) -> dict[str, Any]:
    """The counters of both sessions, and a row for each."""
    measured = count_turns(work.short, work.long, pairs=work.pairs, model=work.model)
    return {**measured, "rows": rows(measured), "versions": versions()}


BENCHES: Mapping[str, Callable[[Any], Any]] = {
    "sample": measure_sample,
    "sample-profile": profile_sample,
    "train": measure_train,
    "train-profile": profile_train,
    "memory": measure_memory,
    "step": measure_step,
    "publish": measure_publish,
    "gateway": measure_gateway,
    "trace": measure_trace,
    "replicas": measure_replicas,
    "overlap": measure_overlap,
    "turns": measure_turns,
    "reload": measure_reload,
}
"""What measures; its argument's type is that of the work."""


def main() -> None:
    """Measure the bench that the first argument names, with the work in the file that the second one names."""
    bench, file = sys.argv[1:]
    measure = BENCHES[bench]
    figures = measure(read_work(get_type_hints(measure)["work"], Path(file).read_text()))
    figures = asyncio.run(figures) if inspect.iscoroutine(figures) else figures
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
