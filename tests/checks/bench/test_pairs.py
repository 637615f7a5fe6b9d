"""Two commands in turn, and the statistics of their pairs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ludus.checks.bench.pairs import Runner, compare, run_pairs, significant
from ludus.checks.bench.workloads import SampleWork
from ludus.errors import BackendError

WORK = asdict(SampleWork("folder", batches=(((1, 2), (3,)),), new_tokens=5))


def runner(name: str, script: str) -> Runner:
    return Runner(name, (sys.executable, "-S", "-c", script), WORK, advice="look at the script")


def test_a_runner_gets_its_work_and_its_last_object_counts() -> None:
    """The work is the JSON file behind the last argument; noise before and after the results is no harm."""
    script = (
        "import json, sys\n"
        "work = json.load(open(sys.argv[-1]))\n"
        "print('{not json')\n"
        "print(json.dumps({'rate': work['new_tokens'], 'ids': work['batches'][0][1]}))\n"
        "print('goodbye')"
    )
    assert runner("a", script).run() == {"rate": 5, "ids": [3]}


def test_runners_are_measured_in_turn(tmp_path: Path) -> None:
    """Ours, the peer, ours, the peer: each in a process of its own; without a peer ours alone."""
    log = tmp_path / "log"
    script = "import os; open({log!r}, 'a').write({name!r} + str(os.getpid()) + ' '); print('{{\"x\": 1}}')"
    ours, peer = (runner(name, script.format(log=str(log), name=name)) for name in "ab")
    told: list[str] = []
    measured = run_pairs(ours, peer, pairs=2, on_start=told.append)
    runs = log.read_text().split()
    assert [run[0] for run in runs] == told == ["a", "b", "a", "b"]
    assert len(set(runs)) == 4
    assert measured.ours == [{"x": 1}] * 2 and measured.peer == [{"x": 1}] * 2
    assert run_pairs(ours, None, pairs=1, on_start=told.append).peer is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; sys.stderr.write('a\\nno module named x'); sys.exit(3)", "exit code 3"),
        ("print('hello')", "no results"),
        ("print('[1, 2]')", "no results"),
    ],
)
def test_a_runner_that_fails_says_why_and_what_to_do(script: str, said: str) -> None:
    """The error holds the runner's last lines and its advice."""
    with pytest.raises(BackendError) as caught:
        runner("vllm", script).run()
    message = str(caught.value)
    assert message.startswith("vllm ") and said in message and "look at the script" in message
    assert message.splitlines()[-1] in ("no module named x", "hello", "[1, 2]")


def test_a_runner_that_is_not_there_is_an_error_too(tmp_path: Path) -> None:
    """A missing interpreter is told with the advice."""
    missing = Runner("trl", (str(tmp_path / "python"), "x.py"), WORK, advice="run bench/peers.sh")
    with pytest.raises(BackendError, match=r"could not be started.*run bench/peers\.sh"):
        missing.run()


def test_ratios_are_of_pairs() -> None:
    """The ratio is the median of the pairs' ratios, not the ratio of the medians; of times it is turned over."""
    rates = compare([20.0, 30.0, 80.0], [10.0, 10.0, 100.0])
    assert (rates["ours"], rates["peer"]) == (30.0, 10.0)
    assert (rates["ratio"], rates["ratio_min"], rates["ratio_max"]) == (2.0, 0.8, 3.0)
    times = compare([2.0], [5.0], less_is_faster=True)
    assert times == {"ours": 2.0, "peer": 5.0, "ratio": 2.5, "ratio_min": 2.5, "ratio_max": 2.5}
    assert json.dumps(significant(1234.567)) == "1235.0" and significant(0.0123456) == 0.01235
