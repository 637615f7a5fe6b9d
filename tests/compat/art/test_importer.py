"""ART's folders, in every format that ART has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.importer import ImportedModel, find_models, import_model, write_model
from ludus.errors import UserError

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
MESSAGE = pa.struct([(name, pa.string()) for name in ("role", "content", "tool_calls", "tool_call_id")])


def write_parquet(path: Path) -> None:
    """As ART 0.5 flattens a group of two and one of one."""

    def message(role: str, content: str | None, **fields: Any) -> dict[str, Any]:
        return {
            "role": role,
            "content": content,
            "tool_calls": None,
            "tool_call_id": None,
            "trainable": False,
            **fields,
        }

    first = [
        message("user", "2+2?"),
        message("assistant", None, tool_calls=json.dumps([CALL]), trainable=True),
        message("tool", "4", tool_call_id="c1"),
        message("assistant", "4", trainable=True),
    ]
    rows = [
        {
            "group_index": index,
            "group_metadata": json.dumps({"task": index}),
            "group_metrics": None,
            "reward": reward,
            "metrics": json.dumps({"steps": 2}),
            "metadata": json.dumps({"id": "a"}),
            "tools": json.dumps([TOOL]),
            "logs": ["began"],
            "messages": first,
            "brand_new": "x",
        }
        for index, reward in ((0, 1.0), (0, 0.25), (1, 0.0))
    ]
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def told_group() -> dict[str, Any]:
    """As ART wrote it before: JSON lines, choices whole but for their logprobs."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "4", "refusal": None}}
    return {
        "trajectories": [
            {
                "reward": 0.5,
                "metrics": {"steps": 1},
                "metadata": {},
                "messages_and_choices": [{"role": "user", "content": "2+2?"}, choice],
                "tools": None,
                "additional_histories": [{"messages_and_choices": [choice], "tools": [TOOL]}],
                "logs": [],
            }
        ]
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / ".art" / "proj" / "models" / "agent-001"
    write_parquet(model / "trajectories" / "train" / "0003.parquet")
    (model / "trajectories" / "val").mkdir()
    (model / "trajectories" / "val" / "0000.jsonl").write_text(json.dumps(told_group()) + "\n")
    (model / "trajectories" / "val" / "old.yaml").write_text(yaml.safe_dump([told_group()]))
    (model / "trajectories" / "val" / "notes.txt").write_text("?")
    (model / "model.json").write_text(
        json.dumps({"name": "agent-001", "project": "proj", "base_model": "Qwen/Qwen3-0.6B", "trainable": True, "x": 1})
    )
    (model / "state.json").write_text('{"position": 12}')
    (model / "history.jsonl").write_text(
        '{"step": 3, "train/reward": 0.5, "recorded_at": "noon"}\n{"training_step": 4, "l": 1}\n{"l": 1}\n'
    )
    for step in ("0002", "0003"):
        (model / "checkpoints" / step).mkdir(parents=True)
    (model / "checkpoints" / "0003" / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "Qwen/Qwen3-0.6B"}'
    )
    (model / "tensors").mkdir()
    (model / "secret").mkdir()
    return tmp_path / ".art"


def model_of(folder: Path) -> ImportedModel:
    (found,) = find_models(folder)
    return import_model(found)


def groups_of(model: ImportedModel, name: str) -> list[TrajectoryGroup]:
    return [TrajectoryGroup.model_validate_json(line) for line in model.files[name].splitlines()]


def fates(model: ImportedModel) -> dict[str, str]:
    return {entry.name: entry.fate for entry in model.entries}


def test_parquet_becomes_groups(folder: Path) -> None:
    """In their order, with rewards, tools, calls, and which messages the model said."""
    first, second = groups_of(model_of(folder), "trajectories/train/0003.jsonl")
    assert [[each.reward for each in group] for group in (first, second)] == [[1.0, 0.25], [0.0]]
    assert (first.metadata, first.trajectories[0].metadata) == ({"task": 0}, {"id": "a"})
    one = first.trajectories[0]
    assert (one.metrics, one.tools, one.logs) == ({"steps": 2}, [TOOL], ["began"])
    assert one.messages()[1]["tool_calls"] == [CALL]
    assert one.messages()[2] == {"role": "tool", "content": "4", "tool_call_id": "c1"}
    assert [choice.message.content for choice in one.choices()] == [None, "4"]


@pytest.mark.parametrize("name", ["0000", "old"])
def test_older_files_become_groups(folder: Path, name: str) -> None:
    """JSON lines and the YAML before them, with the histories of sub-agents."""
    (group,) = groups_of(model_of(folder), f"trajectories/val/{name}.jsonl")
    (one,) = group
    assert one.reward == 0.5
    assert one.choices()[0].finish_reason == "stop"
    assert one.additional_histories[0].tools == [TOOL]


def test_metrics_and_state_come_along(folder: Path) -> None:
    """As files of their own."""
    files = model_of(folder).files
    rows = [json.loads(line) for line in files["history.jsonl"].splitlines()]
    assert rows == [{"step": 3, "train/reward": 0.5, "recorded_at": "noon"}, {"training_step": 4, "l": 1, "step": 4}]
    assert json.loads(files["state.json"]) == {"position": 12}


def test_every_file_and_odd_field_is_in_the_report(folder: Path) -> None:
    """What was not taken as well."""
    model = model_of(folder)
    assert fates(model) == {
        "checkpoints/0002": "not needed",
        "checkpoints/0003": "taken",
        "history.jsonl": "taken",
        "history.jsonl: line 3": "left out",
        "model.json": "not needed",
        "model.json: x": "left out",
        "secret": "left out",
        "state.json": "taken",
        "tensors": "not needed",
        "trajectories/train/0003.parquet": "changed",
        "trajectories/train/0003.parquet: brand_new": "left out",
        "trajectories/val/0000.jsonl": "changed",
        "trajectories/val/notes.txt": "left out",
        "trajectories/val/old.yaml": "changed",
    }
    assert (model.num_groups, model.num_trajectories) == (4, 5)


def test_an_adapter_of_a_rounded_base_is_left_out(folder: Path) -> None:
    """What its base is called does not load here; the report says what to do."""
    config = folder / "proj" / "models" / "agent-001" / "checkpoints" / "0003" / "adapter_config.json"
    config.write_text('{"base_model_name_or_path": "unsloth/qwen3-0.6b-bnb-4bit"}')
    assert fates(model_of(folder))["checkpoints/0003"] == "left out"
    config.unlink()
    assert fates(model_of(folder))["checkpoints/0003"] == "left out"


def test_a_group_that_cannot_be_read_is_named_and_the_others_come(folder: Path) -> None:
    """One bad line loses one group."""
    path = folder / "proj" / "models" / "agent-001" / "trajectories" / "val" / "0000.jsonl"
    bad = {"trajectories": [{"messages_and_choices": [{"content": "no role"}], "reward": 1.0}]}
    path.write_text(json.dumps(bad) + "\n" + json.dumps(told_group()) + "\n")
    model = model_of(folder)
    assert fates(model)["trajectories/val/0000.jsonl: group 0"] == "left out"
    assert len(groups_of(model, "trajectories/val/0000.jsonl")) == 1


@pytest.mark.parametrize("below", ["", "proj", "proj/models/agent-001"])
def test_any_folder_above_a_model_will_do(folder: Path, below: str) -> None:
    """ART's own, a project's, or the model's."""
    assert [found.name for found in find_models(folder / below)] == ["agent-001"]


def test_a_folder_without_models_is_said(tmp_path: Path) -> None:
    """And so is a file."""
    with pytest.raises(UserError, match="holds no model of ART"):
        find_models(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        find_models(tmp_path / "missing")


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    """A second import goes elsewhere."""
    model = model_of(folder)
    written = write_model(model, tmp_path / "out")
    logbook = tmp_path / "out" / "proj" / "models" / "agent-001"
    assert sorted(path.relative_to(logbook).as_posix() for path in written) == sorted(model.files)
    with pytest.raises(UserError, match="exists already"):
        write_model(model, tmp_path / "out")
