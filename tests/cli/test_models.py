"""`ludus models`: what there is and where it lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_the_list_says_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ludus: Callable[..., Any]) -> None:
    """An embedded model that is not in the cache is listed with the command that fetches it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    missing = ludus("models", "list")
    assert missing.code == 0 and "ludus models get smollm2-135m" in missing.out and "Apache-2.0" in missing.out
    folder = tmp_path / "ludus" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert "yes" in ludus("models", "list").out


def test_a_folder_is_found_as_it_is(tiny_model_folder: Path, ludus: Callable[..., Any]) -> None:
    """`path` and `get` print one folder, ready for other programs."""
    for command in ("path", "get"):
        assert ludus("models", command, tiny_model_folder).out == f"{tiny_model_folder}\n"


def test_a_model_nobody_has_is_named(ludus: Callable[..., Any]) -> None:
    """The message lists what would have worked."""
    ended = ludus("models", "path", "no-such-model")
    assert ended.code == 2 and "no model 'no-such-model'" in ended.err and "smollm2-135m" in ended.err


def test_a_shape_becomes_a_model(tiny_model_folder: Path, tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """`random` prints the folder of a model that everything else takes, and refuses to write over one."""
    made = tmp_path / "made"
    options = (tiny_model_folder / "config.json", made, "--tokenizer", tiny_model_folder, "--seed", "3")
    assert ludus("models", "random", *options).out == f"{made}\n"
    assert ludus("models", "path", made).out == f"{made}\n"
    again = ludus("models", "random", *options)
    assert again.code == 2 and f"{made} is not empty" in again.err.replace("\n", " ")
