"""Compiling the native kernel."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from ludus.errors import BackendError
from ludus.kernels import build
from ludus.kernels.build import build_library, main, obtain


def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    """The second call finds the library of the first, and no scratch file stays behind."""
    library = build_library("attention", tmp_path)
    compiled_at = library.stat().st_mtime_ns
    assert build_library("attention", tmp_path) == library
    assert library.stat().st_mtime_ns == compiled_at
    assert [path.name for path in library.parent.iterdir()] == [library.name]


def test_without_a_compiler_the_error_names_those_that_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler on the path: the message says which ones are looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"g\+\+"):
        build_library("attention", tmp_path)


def test_compiling_ahead_says_what_a_missing_compiler_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run as a program without a compiler it does not fail: the eager kernel serves, and the cost is reported."""
    monkeypatch.setenv("PATH", str(tmp_path))
    main()
    assert "twice as long" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A cache below a file cannot be made, and the message says which folder it was."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match="file"):
        build_library("attention", tmp_path / "file")


def test_a_changed_header_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers belong to the key: a library made with another one is not taken from the cache."""
    folder = tmp_path / "native"
    shutil.copytree(build.source_path("adamw").parent, folder)
    monkeypatch.setattr(build, "_FOLDER", folder)
    monkeypatch.setattr(build, "compile_source", lambda compiler, source, library: library.touch())
    before = build_library("adamw", tmp_path)
    header = folder / "vectors.h"
    header.write_text(header.read_text() + "// changed\n")
    assert build_library("adamw", tmp_path) != before


def test_sources_and_headers_are_installed() -> None:
    """Every file that a compilation reads matches a pattern of what the package ships."""
    folder = build.source_path("adamw").parent
    project = tomllib.loads((folder.parent.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["ludus"]
    shipped = {path for pattern in patterns for path in folder.parent.glob(pattern)}
    assert {*folder.glob("*.cpp"), *folder.glob("*.h")} <= shipped


def test_what_cannot_be_had_gives_its_reason() -> None:
    """A refusal is handed on without trying; a failure to build or open gives its message; else what was made."""

    def fail() -> int:
        raise BackendError("no compiler")

    assert obtain(lambda: 7) == 7
    assert obtain(fail) == "no compiler"
    assert obtain(fail, "on a card") == "on a card"
