"""Where peers are looked for, and what is said when they are not there."""

from __future__ import annotations

import ast
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest

from ludus.checks.bench.runner import our_runner, peer_names, peer_runner
from ludus.checks.bench.table import BENCHES, Bench
from ludus.checks.bench.workloads import Workload
from ludus.errors import UserError
from ludus.import_strings import import_object

WORK = Workload("folder")
PEERS = Path(__file__).parents[3] / "bench" / "peers"


def test_ours_runs_in_this_interpreter() -> None:
    """Our runner is a module of this installation."""
    assert our_runner("sample", WORK).command == (sys.executable, "-m", "ludus.checks.bench.runner", "sample")


@pytest.mark.parametrize("bench", BENCHES.values(), ids=BENCHES)
def test_every_bench_names_what_measures_it(bench: Bench) -> None:
    """It is a function of this installation, whose argument is the work."""
    measure = import_object(f"ludus.checks.bench.{bench.measure}")
    assert is_dataclass(get_type_hints(measure)["work"])


def test_peers_run_in_their_environments(tmp_path: Path) -> None:
    """vLLM, TRL and other gateways have environments of their own; plain transformers is that of Ludus itself."""
    python = tmp_path / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert peer_runner("vllm", "sample", WORK, tmp_path).command == (str(python), str(PEERS / "vllm_sample.py"))
    gateways = [tmp_path / name / "bin" / "python" for name in ("litellm", "rllm")]
    for each in gateways:
        each.parent.mkdir(parents=True)
        each.touch()
        proxy = peer_runner(each.parts[-3], "gateway", WORK, tmp_path)
        assert proxy.command == (str(each), str(PEERS / "proxy_gateway.py"))
    assert peer_runner("transformers", "train", WORK, tmp_path).command[0] == sys.executable
    batching = (sys.executable, str(PEERS / "transformers_batching_sample.py"))
    assert peer_runner("transformers-batching", "sample", WORK, tmp_path).command == batching


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """An unknown peer gets the known ones, a peer that is not set up the script that sets it up."""
    with pytest.raises(UserError, match=r"known: vllm, transformers, transformers-batching$"):
        peer_runner("tlr", "sample", WORK, tmp_path)
    with pytest.raises(UserError, match=r"trl-autocast is not set up.*bench/peers\.sh"):
        peer_runner("trl", "step", WORK, tmp_path)


def test_a_peer_has_several_ways_to_be_run(tmp_path: Path) -> None:
    """TRL's own precision is meant where none is named; the precision is an argument of its script."""
    assert peer_names("step", "trl") == ("trl-autocast", "trl-fp32", "trl-bf16")
    assert peer_names("step", "trl-fp32") == ("trl-fp32",)
    python = tmp_path / "trl" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    runner = peer_runner("trl", "step", WORK, tmp_path)
    assert runner.name == "trl-autocast" and runner.command == (str(python), str(PEERS / "trl_step.py"), "autocast")


@pytest.mark.parametrize("path", sorted(PEERS.glob("*.py")), ids=lambda path: path.name)
def test_peers_know_nothing_of_ludus(path: Path) -> None:
    """A peer's script is valid, takes its work as an argument, and imports nothing of ours."""
    tree = ast.parse(path.read_text())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in imported if name.split(".")[0] == "ludus"]
    assert 'parser.add_argument("work", type=Path)' in path.read_text()
