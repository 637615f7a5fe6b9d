"""Our side of a benchmark in a process of its own: `python -m ludus.bench.side BENCH WORK.json`.

Prints one JSON object, the figures, as its last line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from ludus.bench.sample import measure_sample
from ludus.bench.work import SampleWork


def measure(bench: str, work: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the bench of that name."""
    benches: dict[str, Callable[..., dict[str, Any]]] = {
        "sample": lambda **fields: asyncio.run(measure_sample(SampleWork(**fields))),
    }
    return benches[bench](**work)


def main() -> None:
    bench, file = sys.argv[1:]
    figures = measure(bench, json.loads(Path(file).read_text()))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
