"""Every bench, one record each: what measures it, which of its results are compared, and which are shown beside.

Knows: names of results, peers' scripts.  Knows not: processes, terminals; what measures is imported by who runs it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ludus.checks.bench.pairs import Results


def as_rows(results: Results) -> Sequence[Results]:
    """The rows that were printed; results without any are a row themselves."""
    rows: Sequence[Results] = results.get("rows", [results])
    return rows


def _of_steps(results: Results) -> Sequence[Results]:
    """The median step; the first one of a process is to warm up."""
    lines = results["steps"][1:]
    names = ("seconds", "rollout_s", "train_s", "publish_s")
    medians = {name: statistics.median(line[name] for line in lines) for name in names if name in lines[0]}
    return [{**results, "task": "sums", **medians}]


def _of_gateway(results: Results) -> Sequence[Results]:
    """Requests a second, then what is added to the engine's time, in milliseconds."""
    added = {"p50_s": "p50", "p99_s": "p99", "first_token_s": "until the first token"}
    times = [
        {"result": f"added ms, one at a time, {words}", "ms": results[name] * 1e3} for name, words in added.items()
    ]
    return [{**results, "result": f"requests/s, {results.get('requests')} at once"}, *times]


@dataclass(frozen=True, slots=True)
class Bench:
    """One bench. A name that ends in `_per_s` is a rate, of which more is faster; any other compared one is a time."""

    measure: str
    """MODULE:FUNCTION of this folder; the type of its argument is that of the work."""
    compared: tuple[str, ...] = ()
    """The result that is compared; of several names the first that a row has."""
    unit: str = ""
    row: str = ""
    """The result that names a row."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Headers of further results, by name; those of the peer are called `peer_NAME`, and {peer} is who it is."""
    rows: Callable[[Results], Sequence[Results]] = as_rows
    """What was printed, row by row, with the names above."""
    peers: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    """By name the peer's script, and the environment that it needs. None: that of Ludus itself."""


_PEAKS = {"peak_mb": "ludus peak MB", "peer_peak_mb": "{peer} peak MB"}

BENCHES: Mapping[str, Bench] = {
    "sample": Bench(
        "sample:measure_sample",
        ("tokens_per_s",),
        "tokens/s",
        row="requests",
        beside={"decode_tokens_per_s": "decoding alone", "bandwidth_share": "of bandwidth"},
        peers={
            "vllm": ("vllm_sample.py", "vllm"),
            "transformers": ("transformers_sample.py", None),
            "transformers-batching": ("transformers_batching_sample.py", None),
        },
    ),
    "train": Bench(
        "train:measure_train",
        ("tokens_per_s",),
        "tokens/s",
        row="work",
        beside={**_PEAKS, "matrix_gflops_per_s": "matrix GFLOP/s"},
        peers={"transformers": ("transformers_train.py", None)},
    ),
    "step": Bench(
        "step:measure_step",
        ("seconds",),
        "s/step",
        row="task",
        beside={**_PEAKS, "rollout_s": "sampling", "train_s": "training", "publish_s": "publish"},
        rows=_of_steps,
        peers={"trl": ("trl_step.py", "trl")},
    ),
    "gateway": Bench(
        "gateway:measure_gateway",
        ("ms", "requests_per_s"),
        row="result",
        rows=_of_gateway,
        peers={"litellm": ("proxy_gateway.py", "litellm"), "rllm": ("proxy_gateway.py", "rllm")},
    ),
    "publish": Bench(
        "publish:measure_publish",
        ("seconds",),
        "s",
        row="kv",
        beside={
            "copy_s": "copy s",
            "extra_s": "sampling longer by s",
            "carried_tokens": "tokens carried on",
            "stale_tokens": "stale in cache",
        },
    ),
    "trace": Bench(
        "trace:measure_trace",
        ("tokens_per_s",),
        "tokens/s",
        row="work",
        beside={"episodes_per_s": "episodes/s", "late_traces": "traces late", "leaving_s": "by s"},
    ),
    "replicas": Bench("replicas:measure_replicas", ("episodes_per_s",), "episodes/s", row="work"),
    "overlap": Bench(
        "overlap:measure_overlap",
        ("episodes_per_s",),
        "episodes/s",
        row="ahead",
        beside={
            "step_s": "s/step",
            "reward": "reward",
            "reward_error": "±",
            "success": "success",
            "stale_versions": "versions old",
        },
    ),
    "reload": Bench("publish:measure_reload"),
    "turns": Bench("turns:measure_turns"),
    "memory": Bench("train:measure_memory"),
    "sample-profile": Bench("sample:profile_sample"),
    "train-profile": Bench("train:profile_train"),
}
"""By name; those that compare nothing are a part of another, or are shown as they are."""
