"""`ludus train`, `eval` and `report` on one small run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.train import file_and_keys


def test_a_run_is_trained_evaluated_and_reported(run_yaml: Path, ludus: Callable[..., Any]) -> None:
    """The run ends with a table and a line of figures, which its summary holds too; eval and report read its folder."""
    ended = ludus("train", run_yaml, "--json")
    assert ended.code == 0, ended.err
    folder = run_yaml.parent / "runs" / "small"
    line = json.loads(ended.last)
    assert line["steps"] == 2 and line["success_after"] == 1.0 and line["run"] == str(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert {key: summary[key] for key in line} == line
    assert "step 2/2" in ended.out and "sampled =" in ended.out
    assert (folder / "report.html").exists() and (folder / "reward.png").exists()

    evaluated = ludus("eval", folder, "--json")
    assert evaluated.code == 0, evaluated.err
    figures = json.loads(evaluated.last)
    assert figures["eval/episodes"] == 2 and figures["model"].endswith("small/model")

    (folder / "report.html").unlink()
    reported = ludus("report", folder)
    assert reported.code == 0 and reported.out.splitlines()[0] == str(folder / "report.html")
    assert "shown as ids" not in reported.out
    assert re.search(r'"kind":"sampled","logprob":-\d', (folder / "report.html").read_text())

    again = ludus("train", run_yaml)
    assert again.code == 2 and "--resume" in again.err

    beside = ludus("train", run_yaml, "--new", "--json", "total_train_steps=1")
    assert beside.code == 0, beside.err
    assert (
        json.loads(beside.last)["run"] == f"{folder}-2" and json.loads((folder / "summary.json").read_text()) == summary
    )


def test_the_steps_that_are_explained_are_those_taken(
    run_yaml: Path, ludus: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an epoch never more than a batch has groups, and the first of them of the critic alone."""
    monkeypatch.setenv("COLUMNS", "400")
    keys = ("algorithm.name=ppo", "algorithm.epochs=3", "train_dataset.batch_size=2", "critic.warmup_steps=3")
    ended = ludus("train", run_yaml, *keys, "--explain")
    assert ended.code == 0, ended.err
    assert "1 / tokens * 2: the 2 optimizer steps weigh as much as 2 batches" in ended.out
    assert re.search(r", 6 on each batch of 2 groups of \d; on the first 3 batches of the critic alone", ended.out)


def test_a_first_start_that_failed_is_begun_by_resume(run_yaml: Path, ludus: Callable[..., Any]) -> None:
    """It left logs of its processes; a name that nobody used is still a mistake. A run is its user's alone."""
    keys = ("total_train_steps=1", "eval={before: false, after: false}", "valid_dataset.path=null", "--resume")
    refused = ludus("train", run_yaml, *keys)
    assert refused.code == 2 and "is not there" in refused.err
    folder = run_yaml.parent / "runs" / "small"
    (folder / "roles").mkdir(parents=True)
    ended = ludus("train", run_yaml, *keys)
    assert ended.code == 0, ended.err
    assert (folder / "run.db").stat().st_mode & 0o777 == 0o600
    for each in (folder, folder / "checkpoints", folder / "journal", folder / "tokens"):
        assert each.stat().st_mode & 0o777 == 0o700, each


def test_keys_alone_are_a_configuration(
    tmp_path: Path, tiny_model_folder: Path, agent_file: Path, rows_file: Path, ludus: Callable[..., Any]
) -> None:
    """A run needs no file of its own, and what it leaves is one; an evaluation needs none either."""
    keys = [
        f"run_root={tmp_path}/runs",
        f"model={{path: {tiny_model_folder}, dtype: float32}}",
        f"workflow={agent_file}:Agent",
        f"train_dataset={{path: {rows_file}, batch_size: 1}}",
        f"valid_dataset.path={rows_file}",
        "gconfig.n_samples=2",
        "total_train_steps=1",
    ]
    ended = ludus("train", *keys, "--json")
    assert ended.code == 0, ended.err
    again = ludus("train", tmp_path / "runs" / "run" / "config.yaml", "--new", "--json")
    assert again.code == 0 and json.loads(again.last)["run"].endswith("run-2"), again.err
    evaluated = ludus("eval", *keys, "--json")
    assert evaluated.code == 0 and json.loads(evaluated.last)["eval/episodes"] == 4, evaluated.err
    for command in ("train", "eval"):
        assert ludus(command).code == 2 and "workflow=agent.py:Agent" in ludus(command).err


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("engine.urls=[http://a/]", (None, ["engine.urls=[http://a/]", "k=v"])),
        ("run.yaml", (Path("run.yaml"), ["k=v"])),
        ("with=sign", (Path("with=sign"), ["k=v"])),
    ],
)
def test_the_first_argument_is_a_file_or_a_key(
    first: str, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys stay as they are written; a file is one whatever its name."""
    monkeypatch.chdir(tmp_path)
    Path("with=sign").touch()
    assert file_and_keys(first, ["k=v"]) == expected


def test_a_run_without_a_model_cannot_be_evaluated(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """The message says which folder is missing and how to get it."""
    (tmp_path / "config.yaml").write_text("name: x\nmodel: {}\n")
    ended = ludus("eval", tmp_path)
    assert ended.code == 2 and "has no trained model yet" in ended.err and "--resume" in ended.err


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """`report` and `eval` say what they looked for."""
    assert "is not the folder of a run" in ludus("report", tmp_path).err
    assert "config.yaml is missing" in ludus("eval", tmp_path).err


def test_a_report_without_the_model_shows_ids(run_yaml: Path, ludus: Callable[..., Any]) -> None:
    """Where the run's model is not on this machine, the page is still written, with ids."""
    assert ludus("train", run_yaml, "total_train_steps=1", "eval.before=false").code == 0
    folder = run_yaml.parent / "runs" / "small"
    (folder / "config.yaml").write_text("model: {path: /nowhere}\n")
    ended = ludus("report", folder)
    assert ended.code == 0 and "tokens are shown as ids" in ended.out


def test_an_interrupted_evaluation_is_one_line_and_code_130(
    run_yaml: Path, agent_file: Path, ludus: Callable[..., Any]
) -> None:
    """Ctrl-C while the held-out rows are played leaves no traceback."""
    ended = ludus("eval", run_yaml, f"workflow={agent_file}:is_interrupted")
    assert (ended.code, ended.err.strip(), ended.out) == (130, "interrupted", "")


def test_a_dataclass_extends_the_configuration(run_yaml: Path, ludus: Callable[..., Any], tmp_path: Path) -> None:
    """--config-class: its own parameters beside the keys, with or without a file."""
    (tmp_path / "mine.py").write_text(
        "import dataclasses, ludus\n"
        "from ludus.compat.realhf import AgentAbstraction, AsyncRLExperimentConfig\n"
        "@dataclasses.dataclass\n"
        "class MyConfig(AsyncRLExperimentConfig):\n"
        "    my_param: float = 1.0\n"
        "    @property\n"
        "    def agent(self):\n"
        "        assert self.my_param == 5.0 and self.dataset.batch_size == 2\n"
        "        return AgentAbstraction('null', {'episode_length': 2})\n"
    )
    overrides = ("my_param=5.0", "workflow=null", "dataset.train_bs_n_seqs=2")
    ended = ludus("train", run_yaml, "--config-class", f"{tmp_path}/mine.py:MyConfig", *overrides)
    assert ended.code == 0, ended.err
    saved = (run_yaml.parent / "runs" / "small" / "config.yaml").read_text()
    assert "my_param: 5.0" in saved and "mine.py:MyConfig" in saved
    assert "unknown key 'my_param'" in ludus("train", "my_param=5.0").err
    ended = ludus("train", "--config-class", f"{tmp_path}/mine.py:MyConfig", "my_parm=5.0")
    assert ended.code == 2 and "did you mean 'my_param'" in ended.err


def test_an_agent_named_as_in_the_original_is_told_its_place(run_yaml: Path, ludus: Callable[..., Any]) -> None:
    """An import string that begins with the name of a package whose names are here."""
    ended = ludus("train", run_yaml, "workflow=areal.workflow.multi_turn.MultiTurnWorkflow")
    assert ended.code == 2 and "there is no module 'areal'" in ended.err, ended.err
    assert "here it is 'ludus.compat.areal'" in ended.err
