"""Compiling the native kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ludus.errors import BackendError
from ludus.kernels import build
from ludus.kernels.build import build_library, build_of, main, obtain


def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    """The second call finds the library of the first, and no scratch file stays behind."""
    library = build_library("attention", tmp_path)
    compiled_at = library.stat().st_mtime_ns
    assert build_library("attention", tmp_path) == library
    assert library.stat().st_mtime_ns == compiled_at
    assert sorted(path.name for path in library.parent.iterdir()) == ["attention.json", library.name]
    assert library.parent.stat().st_mode & 0o777 == 0o700


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
    monkeypatch.setattr(build, "compile_source", _pretend)
    before = build_library("adamw", tmp_path)
    header = folder / "vectors.h"
    header.write_text(header.read_text() + "// changed\n")
    assert build_library("adamw", tmp_path) != before


def _pretend(compiler: build.Compiler, source: Path, library: Path) -> None:
    """A compiler that writes nothing, with all it needs."""
    del compiler, source
    library.touch()
    library.with_suffix(".json").write_text('{"compiler": "c++", "flags": ["-march=native", "-fopenmp"]}')


def test_cxx_and_its_flags_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX may have arguments; CXXFLAGS come last; what they are belongs to the key; a CXX that is none is named."""
    before = build_library("rounding", tmp_path)
    monkeypatch.setenv("CXX", f"{shutil.which('g++')} -DNOTHING")
    monkeypatch.setenv("CXXFLAGS", "-O1 -DNOTHING_MORE")
    library = build_library("rounding", tmp_path)
    made = build_of(library)
    assert library != before
    assert made.compiler.endswith("g++ -DNOTHING") and made.flags[-2:] == ("-O1", "-DNOTHING_MORE")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendError, match="CXX='no-such-compiler' names no program"):
        build_library("rounding", tmp_path)


def _compiler(path: Path, refused: str, *, always_fails: bool = False) -> str:
    """A compiler that takes no words of this pattern, and writes empty libraries otherwise."""
    path.write_text(
        f"""#!/bin/sh
for word; do case $word in {refused}) echo "no $word" >&2; exit 1;; esac; done
{"echo no headers >&2; exit 1" if always_fails else ""}
while [ $# -gt 0 ]; do [ $1 = -o ] && : > "$2"; shift; done
"""
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("lacks", "flags", "said"),
    [
        ((), ("-march=native", "-fopenmp"), ""),
        (("-march=native",), ("-mcpu=native", "-fopenmp"), ""),
        (("-fopenmp",), ("-march=native", "-fopenmp-simd"), "no OpenMP"),
        (("-march=native", "-mcpu=native"), ("-fopenmp",), "this very processor"),
        (("-march=native", "-mcpu=native", "-fopenmp", "-fopenmp-simd"), (), "no OpenMP"),
    ],
)
def test_what_a_compiler_lacks_is_left_out_and_said(
    lacks: tuple[str, ...],
    flags: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The best of the variants that it takes; a warning where that costs speed, once for all libraries."""
    monkeypatch.setenv("CXX", _compiler(tmp_path / "compiler", "|".join(lacks) or "nothing-at-all"))
    build._warn.cache_clear()
    for name in ("rounding", "adamw"):
        made = build_of(build_library(name, tmp_path / "cache"))
        assert made.flags == flags
    assert caplog.text.count("install g++") == bool(said) and said in caplog.text


@pytest.mark.parametrize(("flags", "said"), [("-O2 -march=nocona -pipe", "nocona"), ("-march=native", None)])
def test_a_processor_that_cxxflags_name_is_told(
    flags: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """conda's compilers set CXXFLAGS to that of a processor of 2004, for which kernels take many times as long."""
    monkeypatch.setenv("CXX", _compiler(tmp_path / "compiler", "nothing-at-all"))
    monkeypatch.setenv("CXXFLAGS", flags)
    build._warn.cache_clear()
    build_library("rounding", tmp_path / "cache")
    assert caplog.text.count("take that out of CXXFLAGS") == bool(said)
    assert said is None or f"are built for {said}, as CXXFLAGS say" in caplog.text


def test_on_macos_no_library_brings_openmp_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch has a copy of LLVM's there, and a second one ends the process; our own threads are no fault then."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delenv("CXXFLAGS", raising=False)
    monkeypatch.setenv("CXX", _compiler(tmp_path / "compiler", "-march=native"))
    build._warn.cache_clear()
    made = build_of(build_library("rounding", tmp_path / "cache"))
    assert made.flags == ("-mcpu=native", "-fopenmp-simd") and made.cost is None and not caplog.records


def test_the_error_is_that_of_the_plainest_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler says of options that it may lack is not why nothing could be compiled."""
    monkeypatch.setenv("CXX", _compiler(tmp_path / "compiler", "-march=native|-fopenmp", always_fails=True))
    with pytest.raises(BackendError, match=r"could not compile rounding\.cpp: no headers$"):
        build_library("rounding", tmp_path / "cache")


def test_a_compiler_that_does_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one for another processor."""
    (tmp_path / "compiler").write_bytes(b"\x7fELF, but no program")
    (tmp_path / "compiler").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "compiler"))
    with pytest.raises(BackendError, match=r"compiler does not run: .* set CXX"):
        build_library("rounding", tmp_path / "cache")


def test_another_machine_may_compile_into_the_same_home_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers both may have the same pid; neither takes the other's files away."""
    monkeypatch.setenv("CXX", _compiler(tmp_path / "compiler", "nothing-at-all"))
    replace, others = Path.replace, [tmp_path / "cache"]

    def meanwhile(path: Path, target: Path) -> Path:
        if others:
            build_library("rounding", others.pop())
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    library = build_library("rounding", tmp_path / "cache")
    assert not others and build_of(library).flags and len(list(library.parent.iterdir())) == 2


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    """Sources are UTF-8, where texts of the user are GBK, or plain ASCII as here."""
    compiler = _compiler(tmp_path / "compiler", "nothing-at-all")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    script = "from ludus.kernels.build import build_library; print(build_library('rounding'))"
    environment = {**os.environ, **ascii_only, "CXX": compiler, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0 and Path(done.stdout.strip()).is_file(), done.stderr


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """A library, or its folder, that another user could have put there is not loaded, and the message says why."""
    library = build_library("rounding", tmp_path)
    for path in (library, library.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        with pytest.raises(BackendError, match=f"{path} belongs to user .* remove it"):
            build_library("rounding", tmp_path)
        path.chmod(mode)
    assert build_library("rounding", tmp_path) == library


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
