"""Converts ART's folders to log files of models, with a report on every file.

Knows: ART's layout, in both of its formats.  Knows not: command lines, training.
Invariants: written groups load as `TrajectoryGroup`, and log files as a model's own; every file of a model is in the
report. ART stores neither token ids nor logprobs, so imported trajectories can be inspected, judged and used for
supervised training, but not for reinforcement learning.

    .art/PROJECT/models/NAME/  model.json  state.json  history.jsonl
                               trajectories/SPLIT/STEP.parquet, or .jsonl, or .yaml before that
                               checkpoints/STEP/  adapters as PEFT saves them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.api.rows import parse_json
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.importing.files import Row, json_lines, json_lines_or_yaml, read_rows, read_text
from ludus.compat.importing.report import Entry, Fate, lines, write_text
from ludus.errors import UserError

_SUFFIXES = (".parquet", ".jsonl", ".yaml", ".yml")
_OF_BOTH = ("metadata", "metrics", "logs")
_OF_GROUPS = ("group_index", *(f"group_{name}" for name in _OF_BOTH))
_OF_TRAJECTORIES = ("reward", "tools", *_OF_BOTH)
_NOT_NEEDED = {
    "tensors": "batches that were trained on already",
    "logs": "the log of another engine",
    "optimizer_states_rl": "moments of another optimizer",
    "optimizer_states_sft": "moments of another optimizer",
    "wandb": "metrics are in history.jsonl too",
}


@dataclass
class ImportedModel:
    """One model of ART: the content to write, by file name."""

    name: str
    project: str
    files: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    num_groups: int = 0
    num_trajectories: int = 0


def find_models(path: Path) -> list[Path]:
    """Folders of models at or below `path`. Raises UserError if there is none."""
    if not path.is_dir():
        raise UserError(f"{str(path)!r} is no folder; give ART's folder, such as .art/my-project")
    candidates = [path, *path.glob("models/*"), *path.glob("*/models/*")]
    found = [folder for folder in candidates if (folder / "trajectories").is_dir() or (folder / "model.json").is_file()]
    if not found:
        raise UserError(
            f"{str(path)!r} holds no model of ART: there is neither a model.json nor a folder 'trajectories' in it, in "
            "models/* or in */models/*"
        )
    return sorted(found)


def import_model(folder: Path) -> ImportedModel:
    """Read ART's files of one model. Raises UserError, which names the file, if one cannot be read."""
    folder = folder.resolve()
    model = ImportedModel(folder.name, folder.parent.parent.name if folder.parent.name == "models" else folder.name)
    for path in sorted(folder.iterdir()):
        if path.name in _READERS:
            _READERS[path.name](model, path)
        else:
            note = _NOT_NEEDED.get(path.name)
            fate: Fate = "left out" if note is None else "not needed"
            model.entries.append(Entry(path.name, fate, note or "nothing here reads it"))
    return model


def write_model(model: ImportedModel, out: Path) -> list[Path]:
    """Write the log files of a model whose `base_path` is `out`; returns their paths.

    Raises UserError if one of them exists already.
    """
    written = []
    for name, text in model.files.items():
        path = out / model.project / "models" / model.name / name
        write_text(path, text)
        written.append(path)
    return written


# ---- trajectories


def _trajectories(model: ImportedModel, folder: Path) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder.parent)
        if path.suffix in _SUFFIXES:
            _take_groups(model, path, name)
        else:
            note = f"no file of trajectories; allowed: {', '.join(_SUFFIXES)}"
            model.entries.append(Entry(str(name), "left out", note))


def _take_groups(model: ImportedModel, path: Path, name: Path) -> None:
    odd: set[str] = set()
    groups = []
    for number, found in enumerate(_groups(path, odd)):
        try:
            groups.append(TrajectoryGroup(**found))
        except (UserError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            model.entries.append(Entry(f"{name}: group {number}", "left out", reason))
    num_trajectories = sum(map(len, groups))
    model.num_groups += len(groups)
    model.num_trajectories += num_trajectories
    target = name.with_suffix(".jsonl")
    model.files[str(target)] = "".join(group.model_dump_json() + "\n" for group in groups)
    counts = f"{len(groups)} groups, {num_trajectories} trajectories"
    note = f"{counts}, without tokens, which ART does not keep: for judges and supervised training"
    model.entries.append(Entry(str(name), "changed", note))
    model.entries += [Entry(f"{name}: {column}", "left out", "no such field here") for column in sorted(odd)]


def _groups(path: Path, odd: set[str]) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        by_index: dict[int, list[Row]] = {}
        for row in read_rows(path):
            by_index.setdefault(int(row.get("group_index") or 0), []).append(row)
        written: list[Any] = [
            {"trajectories": rows, **{name: rows[0].get(f"group_{name}") for name in _OF_BOTH}}
            for rows in by_index.values()
        ]
    else:
        written = json_lines_or_yaml(read_text(path), path)
    for group in written:
        about = {name: _decoded(group.get(name)) for name in _OF_BOTH}
        yield {
            "trajectories": [_trajectory(trajectory, odd) for trajectory in group.get("trajectories", ())],
            **{name: value for name, value in about.items() if value},
        }


def _trajectory(written: Mapping[str, Any], odd: set[str]) -> dict[str, Any]:
    """A trajectory from JSON lines, with nearly the same fields, or from a row of Parquet, with mappings as JSON
    text."""
    found: dict[str, Any] = {}
    for name, value in written.items():
        if value is None or name in _OF_GROUPS:
            continue
        if name in ("messages_and_choices", "messages"):
            found["messages_and_choices"] = [_item(message) for message in value]
        elif name == "additional_histories":
            found[name] = [_history_of(history) for history in _decoded(value)]
        elif name in _OF_TRAJECTORIES:
            found[name] = _decoded(value)
        else:
            odd.add(name)
    return found


def _history_of(history: Mapping[str, Any]) -> dict[str, Any]:
    items = history.get("messages_and_choices") or history.get("messages") or ()
    return {"messages_and_choices": [_item(item) for item in items], "tools": history.get("tools")}


def _item(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message, or, if it was sampled by the model under training, a choice."""
    if "message" in message:
        choice = {name: value for name, value in message.items() if value is not None and name != "logprobs"}
        return {**choice, "message": _said(choice["message"])}
    plain = _said(message)
    return {"message": plain} if message.get("trainable") else plain


def _said(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = _decoded(message.get("tool_calls"))
    kept = {
        name: value for name, value in message.items() if value is not None and name not in ("trainable", "tool_calls")
    }
    return {**kept, "tool_calls": calls} if calls else kept


def _decoded(value: Any) -> Any:
    """The value of a column that is JSON text in some versions of ART, and a plain value in others."""
    return parse_json(value, "a column of a trajectory") if isinstance(value, str) else value


# ---- the other files


def _history(model: ImportedModel, path: Path) -> None:
    rows = []
    for number, line in enumerate(json_lines(read_text(path), path), start=1):
        step = line.get("step", line.get("training_step")) if isinstance(line, Mapping) else None
        if isinstance(step, int):
            rows.append({**line, "step": step})
        else:
            model.entries.append(Entry(f"{path.name}: line {number}", "left out", "it names no step"))
    model.files["history.jsonl"] = lines(rows)
    model.entries.append(Entry(path.name, "taken", f"{len(rows)} rows"))


def _state(model: ImportedModel, path: Path) -> None:
    model.files[path.name] = read_text(path)
    model.entries.append(Entry(path.name, "taken"))


def _about(model: ImportedModel, path: Path) -> None:
    described = parse_json(read_text(path), repr(str(path)))
    known = ("name", "project", "base_model")
    about = ", ".join(f"{name}={described[name]!r}" for name in known if described.get(name) is not None)
    model.entries.append(Entry("model.json", "not needed", f"say it when you make the model: TrainableModel({about})"))
    for name, value in described.items():
        if name not in (*known, "trainable") and value not in (None, {}, []):
            model.entries.append(Entry(f"model.json: {name}", "left out", "say it when you make the model"))


def _checkpoints(model: ImportedModel, folder: Path) -> None:
    steps = sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())
    for path in steps[:-1]:
        model.entries.append(Entry(f"checkpoints/{path.name}", "not needed", "there is a newer one"))
    for path in steps[-1:]:
        model.entries.append(Entry(f"checkpoints/{path.name}", *_newest(path)))


def _newest(path: Path) -> tuple[Fate, str]:
    config = path / "adapter_config.json"
    if not config.is_file():
        return "left out", "there is no adapter of PEFT in it"
    base = str(parse_json(read_text(config), repr(str(config))).get("base_model_name_or_path"))
    if "4bit" in base:
        note = f"its base {base} is saved in 4 bits, which Ludus does not load: name the base it was made of there"
        return "left out", f"{note}; model.quantization=nf4 rounds it as it is loaded"
    return "taken", f"where it is: model.path={path} goes on with it, on {base}"


_READERS: Mapping[str, Callable[[ImportedModel, Path], None]] = {
    "trajectories": _trajectories,
    "checkpoints": _checkpoints,
    "history.jsonl": _history,
    "state.json": _state,
    "model.json": _about,
}
