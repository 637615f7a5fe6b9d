"""Several datasets in one run: where their rows come from, who plays them, and a run of all of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.api.agent import GivenAgent, choose_players
from ludus.api.sources import train_sources, valid_sources
from ludus.config import Config
from ludus.errors import ConfigError, UserError
from ludus.loop.settings import TrainDatasetSettings, ValidDatasetSettings
from ludus.rollout.mixture import Source
from ludus.runs.store import RunStore

ROWS = [{"question": f"Say {number}."} for number in range(4)]


class Speaker:
    """Asks as often as it is told; all of its answers are worth as much as they have letters."""

    def __init__(self, turns: int = 1, success: float | None = None) -> None:
        self._turns = turns
        self._success = success

    async def run(self, data: Mapping[str, Any], *, base_url: str, http_client: Any) -> ludus.Result:
        letters = 0
        for _ in range(self._turns):
            body = {"messages": [{"role": "user", "content": data["question"]}], "max_tokens": 4}
            answer = (await http_client.post(base_url + "/chat/completions", json=body)).json()
            letters += len(answer["choices"][0]["message"]["content"] or "")
        success = float(letters > 4) if self._success is None else self._success
        return ludus.Result(float(letters), metrics={"success": success})


NAME = f"{__name__}:Speaker"


def test_rows_come_from_files_and_from_python(tmp_path: Path) -> None:
    """What is passed comes before the file; a weight that is not given is the number of rows."""
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]))
    settings = TrainDatasetSettings(mix={"sums": {"path": str(tmp_path / "sums.jsonl")}, "words": {}})
    sums, words = train_sources(settings, {"words": ROWS})
    assert (sums.name, list(sums.rows), sums.weight) == ("sums", ROWS[:3], 3.0)
    assert (words.name, list(words.rows), words.weight) == ("words", ROWS, 4.0)
    weighed = TrainDatasetSettings(mix={"sums": {"weight": 2}, "words": {"weight": 0.5}})
    assert [source.weight for source in train_sources(weighed, {"sums": ROWS, "words": ROWS})] == [2.0, 0.5]
    held_out = ValidDatasetSettings(mix={"sums": {}, "words": {}}, max_rows=2)
    assert [len(each.rows) for each in valid_sources(held_out, {"sums": ROWS, "words": ROWS[:1]})] == [2, 1]
    assert train_sources(TrainDatasetSettings(), ROWS)[0].name == ""
    assert valid_sources(ValidDatasetSettings()) == []


@pytest.mark.parametrize(
    ("mix", "given", "message"),
    [
        ({"sums": {}}, None, r"train_dataset.mix.sums has no rows: set train_dataset.mix.sums.path"),
        ({"sums": {}}, ROWS, r"has the sources sums: pass train_dataset=\{name: rows\}"),
        ({"sums": {}}, {"sum": ROWS}, r"has rows for sum, and train_dataset.mix has the sources sums"),
        ({"sums": {"path": "missing.jsonl"}}, None, r"train_dataset.mix.sums.path: cannot read the file"),
        ({}, None, r"set train_dataset.path"),
    ],
)
def test_rows_that_are_not_there_are_named(mix: Any, given: Any, message: str) -> None:
    """By the key that would bring them."""
    with pytest.raises(UserError, match=message):
        train_sources(TrainDatasetSettings(mix=mix), given)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"path": "a.jsonl", "mix": {"sums": {}}}, "path='a.jsonl' and mix both say where rows come from"),
        ({"mix": {"a": {"weight": 1}, "b": {}}}, "a weight for a and none for b; give all of them, or none"),
        ({"mix": {"a/b": {}}}, "'a/b' must be a name of letters"),
    ],
)
def test_settings_that_contradict_each_other_are_an_error(values: Any, message: str) -> None:
    """Each names what to do."""
    with pytest.raises(ConfigError, match=message):
        TrainDatasetSettings(**values)


def test_a_source_is_played_by_its_own_agent_else_by_the_runs() -> None:
    """Evaluations by the held-out source's, else eval_workflow, else the trained one of that name, else the run's."""
    mix = {"own": {"workflow": NAME}, "other": {"workflow_kwargs": {"turns": 2}}, "plain": {}}
    config = Config(
        train_dataset={"mix": mix}, valid_dataset={"mix": {"own": {}, "plain": {}, "new": {"workflow": NAME}}}
    )
    train = [Source(ROWS, name) for name in mix]
    held_out = [Source(ROWS, name) for name in ("own", "plain", "new")]
    players = choose_players(config, GivenAgent(Speaker), train=train, held_out=held_out)
    assert players.training.keys() == {"own", "other", ""} and players.evaluation.keys() == {"new"}
    assert players.find("plain", is_eval=False) is players.find("plain", is_eval=True) is players.training[""]
    assert players.find("own", is_eval=True) is players.training["own"]
    assert players.find("new", is_eval=True) is players.evaluation["new"]
    assert len(players.agents) == 4
    judged = choose_players(config, GivenAgent(Speaker), GivenAgent(Speaker), train=train, held_out=held_out)
    assert judged.find("own", is_eval=True) is judged.find("plain", is_eval=True) is judged.evaluation[""]
    with pytest.raises(ConfigError, match="no agent was given"):
        choose_players(config, train=train)
    alone = choose_players(config, train=train[:1])
    assert alone.training.keys() == {"own"}


def make_config(model: Path, root: Path, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "mixed",
        "run_root": str(root),
        "seed": 3,
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 2},
        "train_dataset": {
            "batch_size": 3,
            "mix": {
                "one": {"weight": 2, "workflow_kwargs": {"success": 1.0}},
                "two": {"weight": 1, "workflow": NAME, "workflow_kwargs": {"turns": 2, "success": 0.5}},
            },
            "curriculum": {"solved": 1.0},
        },
        "valid_dataset": {"mix": {"one": {}, "two": {}}, "max_rows": 1},
        "eval": {"after": True},
        "total_train_steps": 3,
    }
    return Config(**{**values, **changes})


def test_two_datasets_with_two_agents_train_one_model(
    tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each row is played by its source's agent; shares, means and evaluations are told by source; what is solved is
    skipped; and the run goes on with the same weights only."""
    config, rows = make_config(tiny_model_folder, tmp_path), {"one": ROWS, "two": ROWS[:3]}
    with caplog.at_level(logging.WARNING):
        summary = ludus.Trainer(config, rows, rows).train(Speaker)
    assert summary.steps == 3 and summary.ledger.unbalanced == 0
    with RunStore.open(tmp_path / "mixed") as run:
        metrics = dict(run.metrics())
        played = [(row["task_id"], row["num_turns"]) for row in run.episode_rows() if not row["is_eval"]]
    assert {turns for task, turns in played if task.startswith("one-")} == {1}
    assert {turns for task, turns in played if task.startswith("two-")} == {2}
    assert metrics[1]["rollout/share/one"] == pytest.approx(2 / 3) and metrics[1]["rollout/turns/two"] == 2.0
    assert metrics[1]["rollout/success/one"] == 1.0 and metrics[1]["rollout/success/two"] == 0.5
    assert metrics[3]["eval/turns/one"] == 1.0 and metrics[3]["eval/turns/two"] == 2.0
    assert metrics[3]["eval/episodes"] == 2.0 and metrics[3]["eval/success"] == 0.75
    skipped = sum(row.get("data/skipped_solved", 0.0) for row in metrics.values())
    assert skipped == 4, "the four rows of `one` were solved, and passed over once"
    assert metrics[3]["rollout/share/two"] == pytest.approx(2 / 3)
    changed = make_config(tiny_model_folder, tmp_path, train_dataset={"batch_size": 3, "mix": {"one": {}, "two": {}}})
    with pytest.raises(ConfigError, match=r"train_dataset.mix=\['one: None', 'two: None'\] cannot be resumed with"):
        ludus.Trainer(changed, rows, rows).train(Speaker, resume=True)
    with pytest.raises(
        UserError, match=r"begun with \(train_dataset.mix.two\): there were 3 rows, and there are 2 now"
    ):
        ludus.Trainer(config, {**rows, "two": ROWS[:2]}, rows).train(Speaker, resume=True)
