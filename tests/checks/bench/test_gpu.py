"""The first minutes on a card, as far as a processor and a tiny model can play one."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.checks.bench.gpu import TESTS, Part, Place, Report, read_parts, run_parts
from ludus.checks.bench.runner import CHECKOUT, peer_names
from ludus.errors import UserError

FILE_OF_TESTS = """
import time
def test_right(): pass
def test_wrong(): assert 1 + 1 == 3, "a sum that is wrong"
def test_endless(): time.sleep(600)
"""
FP32 = ("model.dtype=float32", "engine.kv_bytes=16777216")


@pytest.fixture
def place(tmp_path: Path, tiny_model_folder: Path) -> Place:
    """A checkout with tests of its own, and a model that an earlier run has made."""
    (tmp_path / TESTS).parent.mkdir(parents=True)
    (tmp_path / TESTS).write_text(FILE_OF_TESTS)
    models = tmp_path / "results" / "models"
    models.mkdir(parents=True)
    (models / "tiny").symlink_to(tiny_model_folder)
    return Place(tmp_path / "results", device="cpu", checkout=tmp_path)


@pytest.fixture
def run(place: Place) -> Callable[..., list[Mapping[str, Any]]]:
    """Runs parts; the file of results can be read whenever a part has ended."""

    def run(parts: Sequence[Part], seconds: float = 300) -> list[Mapping[str, Any]]:
        report, told = Report(place.folder / "results.json", {"card": "none"}), []

        def read(part: Part, found: Mapping[str, Any]) -> None:
            written = json.loads(report.file.read_text())
            assert written["card"] == "none" and written["parts"][-1] == found and found["part"] == part.name
            told.append(part.name)

        passed = run_parts(parts, place, report, seconds=seconds, on_begin=lambda name: None, on_end=read)
        assert told == [part.name for part in parts]
        assert passed == all(each["ended"] == "passed" for each in report.parts)
        return report.parts

    return run


def test_each_test_of_a_card_is_in_one_part() -> None:
    """None is forgotten, none runs twice; the parts come in the order in which a card should be trusted."""
    functions = [each for each in ast.parse((CHECKOUT / TESTS).read_text()).body if isinstance(each, ast.FunctionDef)]
    tests = [each.name for each in functions if each.name.startswith("test_")]
    parts = read_parts()
    assert sorted(name for part in parts for name in part.tests) == sorted(tests)
    names = [part.name for part in parts]
    assert names[:6] == ["kernels", "tree", "head", "optimizer", "draws", "graphs"]
    assert names[6:11] == ["gap", "resume", "processes", "cards", "game"]
    kinds = ["model", "sample", "train", "step"]
    assert names[11:] == [f"{kind}-{size}" for size in ("0.6b", "4b") for kind in kinds]


def test_every_part_can_be_done() -> None:
    """Shapes and peers are there; all limits together are more than the 25 minutes, each is a fraction of them."""
    for part in read_parts():
        assert not part.shape or (CHECKOUT / "bench" / "shapes" / f"{part.shape}.json").is_file()
        assert not part.peer or peer_names(part.bench, part.peer)
        assert 0 < part.limit_s <= 300
    with pytest.raises(UserError, match="no part 'steps'"):
        read_parts(["steps"])
    assert [part.name for part in read_parts(["step-4b", "head"])] == ["head", "step-4b"]


def test_a_part_that_fails_or_takes_too_long_stops_no_other(run: Callable[..., Any]) -> None:
    """What passed before is known, what failed is shown, and what there was no time for is said."""
    parts = [
        Part("wrong", 60, tests=("test_right", "test_wrong")),
        Part("endless", 15, tests=("test_right", "test_endless")),
        Part("unmade", 60, bench="train", shape="never-made"),
        Part("right", 60, tests=("test_right",)),
    ]
    wrong, endless, unmade, right = run(parts)
    assert wrong["ended"] == "failed" and wrong["tests"] == {"test_right": "PASSED", "test_wrong": "FAILED"}
    assert "a sum that is wrong" in wrong["said"]
    assert endless["ended"] == "out of time" and endless["tests"] == {"test_right": "PASSED"}
    assert unmade["ended"] == "failed" and "the part before that makes it" in unmade["said"]
    assert right["ended"] == "passed" and right["seconds"] < 60
    (late,) = run([replace(parts[3], name="late")], seconds=1)
    assert late["ended"] == "not run" and "seconds" not in late


def test_a_model_is_made_once(run: Callable[..., Any], place: Place) -> None:
    """A shape that is no model says why, and leaves no folder that would be taken for one."""
    assert run([Part("model", 60, shape="tiny")])[0]["ended"] == "passed"
    broken = run([Part("model", 60, shape="no-such-shape")])[0]
    assert broken["ended"] == "failed" and "no configuration" in broken["said"]
    assert not place.model(Part("model", 60, shape="no-such-shape")).exists()


def test_rates_are_measured_as_the_other_benches_do(run: Callable[..., Any]) -> None:
    """Sampling and training of a tiny model on the processor, sampling beside transformers."""
    parts = [
        Part("sample", 120, bench="sample", shape="tiny", peer="transformers-batching", requests=(1, 2), settings=FP32),
        Part("train", 120, bench="train", shape="tiny", rows=(2, 24), settings=FP32),
    ]
    sample, train = run(parts)
    assert sample["ended"] == train["ended"] == "passed", (sample, train)
    assert [row["requests"] for row in sample["rows"]] == [1, 2]
    assert all(row["ours"] > 0 and row["peer"] > 0 and row["matrix_share"] > 0 for row in sample["rows"])
    assert train["rows"][0]["ceiling_share"] > 0 and train["versions"]["ours"]["torch"]
