"""Loads rows by a data set's name, as AReaL's scripts do: `get_custom_dataset(split, config.train_dataset)`.

Knows: files, folders with a file for each split, the conversion of GSM8K.  Knows not: agents.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.api.rows import read_file
from ludus.errors import UserError

VALID_DATASETS = ("gsm8k",)
"""Data sets whose columns are converted; the rows of others are unchanged."""
_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_PICTURES = ("clevr_count_70k", "geometry3k", "virl39k")
_TRAINED_ELSEWHERE = {
    "sft": "supervised training is ludus.train_supervised(config, rows, folder)",
    "rw": "reward models are trained by ludus.train_reward_model(config, rows, folder)",
    "dpo": "preferences are trained by ludus.train_preferences(config, rows, folder)",
}
_BOXED = "\nPlease put your final answer within \\boxed{}."


def get_custom_dataset(
    split: str | None = None,
    dataset_config: Any = None,
    tokenizer: Any = None,
    processor: Any = None,  # noqa: ARG001  AReaL's signature
    **own: Any,
) -> Any:
    """Rows of `dataset_config.path`: a file, a folder with a file for each split, or a name on the Hugging Face Hub.

    GSM8K's are converted to `messages` and `answer`.  dataset_config: its `path`, `type` (rl) and `max_length` are
    read, or arguments of these names.  tokenizer: counts tokens for `max_length`.  processor: ignored.
    Returns a `datasets.Dataset` if that is installed, else a list.
    Raises UserError for rows with images, another type, or a path that does not exist.
    """
    given = {name: getattr(dataset_config, name, None) for name in ("path", "type", "max_length")} | own
    path, kind = str(given["path"]), given["type"] or "rl"
    if any(name in path.lower() for name in _PICTURES):
        raise UserError(f"{path!r} has pictures, and the model reads text; use rows of text")
    if kind != "rl":
        known = _TRAINED_ELSEWHERE.get(kind, "there is 'rl'")
        raise UserError(f"type={kind!r} is not a data set for PPOTrainer: {known}")
    rows = _read(path, split)
    if "gsm8k" in path.lower() and rows and "question" in rows[0]:
        rows = [_asked(row) for row in rows]
    if (longest := given["max_length"]) is not None:
        if tokenizer is None:
            raise UserError(f"max_length={longest} is counted in tokens: pass tokenizer=…")
        rows = [row for row in rows if _num_tokens(row, tokenizer) <= longest]
    return _as_dataset(rows)


def _asked(row: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in row.items() if name != "question"}
    return {**others, "messages": [{"role": "user", "content": row["question"] + _BOXED}]}


def _num_tokens(row: Mapping[str, Any], tokenizer: Any) -> int:
    return sum(len(tokenizer.encode(message["content"])) for message in row.get("messages", ())[:1])


def _read(name: str, split: str | None) -> Sequence[Mapping[str, Any]]:
    path = Path(name).expanduser()
    if path.is_file():
        return read_file(path, "get_custom_dataset")
    if path.is_dir():
        files = list(_files(path, split))
        if files:
            return [row for file in files for row in read_file(file, "get_custom_dataset")]
        return list(_from_disk(path, split))
    datasets = _datasets(f"{name!r} is neither a file nor a folder here, and its name on the Hugging Face Hub")
    subset = {"name": "main"} if "gsm8k" in name.lower() else {}
    try:
        return list(datasets.load_dataset(name, split=split, **subset))
    except Exception as error:  # whatever the network, the Hub and its reader raise
        where = "set train_dataset.path and valid_dataset.path to a folder with train.jsonl and test.jsonl"
        raise UserError(f"cannot load {name!r} ({type(error).__name__}: {error}); {where}") from None


def _files(folder: Path, split: str | None) -> Iterator[Path]:
    """Files of a split (None: of all), in order, in the layouts of the Hub: in the folder itself, in `main` or
    `data`."""
    for place in (folder, folder / "main", folder / "data"):
        if place.is_dir():
            yield from sorted(
                file for file in place.iterdir() if file.suffix in _SUFFIXES and file.stem.startswith(split or "")
            )


def _from_disk(folder: Path, split: str | None) -> Any:
    """A data set written by `save_to_disk`."""
    if not any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        wanted = f"{split}.jsonl" if split else "a file of rows"
        raise UserError(f"{str(folder)!r} has no {wanted}; allowed: {', '.join(_SUFFIXES)}, or a saved data set")
    found = _datasets(f"{str(folder)!r} is a saved data set, which").load_from_disk(str(folder))
    if not isinstance(found, Mapping):
        return found
    if split not in found:
        raise UserError(f"{str(folder)!r} has no split {split!r}; there are {', '.join(map(str, found))}")
    return found[split]


def _datasets(why: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ModuleNotFoundError:
        raise UserError(f"{why} is read by Hugging Face's library: pip install datasets") from None


def _as_dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    try:
        return importlib.import_module("datasets").Dataset.from_list([dict(row) for row in rows])
    except ModuleNotFoundError:
        return list(rows)
