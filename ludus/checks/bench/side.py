"""Our side of a benchmark in a process of its own: `python -m ludus.checks.bench.side BENCH WORK.json`.

Prints one JSON object, the figures, as its last line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ludus.checks.bench.gateway import measure_gateway
from ludus.checks.bench.machine import versions
from ludus.checks.bench.overlap import measure_overlap
from ludus.checks.bench.publish import measure_publish, measure_reload
from ludus.checks.bench.replicas import measure_replicas
from ludus.checks.bench.sample import measure_sample, profile_sample
from ludus.checks.bench.step import measure_step
from ludus.checks.bench.trace import measure_trace
from ludus.checks.bench.train import measure_memory, measure_train, profile_train
from ludus.checks.bench.turns import measure, rows
from ludus.checks.bench.work import (
    GatewayWork,
    MemoryWork,
    OverlapWork,
    PublishWork,
    ReplicasWork,
    SampleWork,
    StepWork,
    TraceWork,
    TrainWork,
    TurnsWork,
)


def measure_turns(work: TurnsWork) -> dict[str, Any]:
    """The counters of both sessions, and a row for each."""
    measured = measure(work.short, work.long, pairs=work.pairs, model=work.model)
    return {**measured, "rows": rows(measured), "versions": versions()}


BENCHES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "sample": lambda **work: asyncio.run(measure_sample(SampleWork(**work))),
    "sample-profile": lambda **work: asyncio.run(profile_sample(SampleWork(**work))),
    "train": lambda **work: measure_train(TrainWork(**work)),
    "train-profile": lambda **work: profile_train(TrainWork(**work)),
    "memory": lambda **work: measure_memory(MemoryWork(**work)),
    "step": lambda **work: measure_step(StepWork(**work)),
    "publish": lambda **work: asyncio.run(measure_publish(PublishWork(**work))),
    "gateway": lambda **work: measure_gateway(GatewayWork.of(**work)),
    "trace": lambda **work: asyncio.run(measure_trace(TraceWork(**work))),
    "replicas": lambda **work: asyncio.run(measure_replicas(ReplicasWork(**work))),
    "overlap": lambda **work: measure_overlap(OverlapWork(**work)),
    "turns": lambda **work: measure_turns(TurnsWork(**work)),
    "reload": lambda **work: measure_reload(PublishWork(**work)),
}


def main() -> None:
    """Measure the bench that the first argument names, with the work in the file that the second one names."""
    bench, file = sys.argv[1:]
    figures = BENCHES[bench](**json.loads(Path(file).read_text()))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
