"""Libraries that a wheel brings along: which of them serves a processor, and that they do where nothing compiles."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import pytest
import torch

from ludus.errors import BackendError
from ludus.kernels import build
from ludus.kernels.build import OPENMP, Compiler, build_library, build_of, find_compiler
from ludus.kernels.levels import LEVELS, shipped_library
from ludus.kernels.rounding import NativeRounding
from ludus.kernels.ship import ship


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir()
        (folder / name / "linear.so").touch()


def test_the_best_level_that_a_processor_understands_is_taken(tmp_path: Path) -> None:
    put(tmp_path, *(level.name for level in LEVELS))
    old = ("sse4_2", "avx")
    wide = (*old, "avx2", "fma", "bmi2", "movbe")
    new = (*wide, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16")

    def level(instructions: tuple[str, ...], architecture: str) -> str:
        found = shipped_library("linear", instructions, architecture, tmp_path)
        return "" if found is None else found.parent.name

    assert level(new, "x86_64") == "x86-64-v4"
    assert level(wide, "x86_64") == "x86-64-v3"
    assert level(old, "x86_64") == "x86-64-v2"
    assert level(("asimd",), "aarch64") == "armv8"
    assert level((), "x86_64") == level(new, "riscv64") == ""
    for hidden, best in (("avx512vl", "x86-64-v3"), ("bmi2", "x86-64-v2")):  # by a virtual machine
        assert level(tuple(each for each in new if each != hidden), "x86_64") == best


def test_what_was_not_shipped_is_not_found(tmp_path: Path) -> None:
    put(tmp_path, "x86-64-v2")
    instructions = ("sse4_2", "avx2", "fma", "bmi2", "movbe")
    found = shipped_library("linear", instructions, "x86_64", tmp_path)
    assert found == tmp_path / "x86-64-v2" / "linear.so"
    assert shipped_library("tree", instructions, "x86_64", tmp_path) is None


def test_they_serve_where_there_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Compiled as `make wheels` does, without a need of libgomp; the warning says what is missing."""
    monkeypatch.setattr("ludus.kernels.ship.source_names", lambda: ["rounding"])
    tag = ship(tmp_path, find_compiler())
    assert tag.startswith("manylinux_2_") and tag.endswith(platform.machine())
    monkeypatch.setattr(build, "shipped_library", lambda name: shipped_library(name, folder=tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    build._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        library = build_library("rounding", tmp_path / "cache")
    assert library.parent.parent == tmp_path and "no C++ compiler found" in caplog.text
    made = build_of(library)
    assert made.flags[-1] == OPENMP and "install g++" in str(made.cost) and b"libgomp" not in library.read_bytes()
    master, rounded = torch.full((40,), 0.75), torch.empty(40, dtype=torch.bfloat16)
    NativeRounding(library)(master, rounded, first=0, key=1)
    assert torch.equal(rounded.float(), master)  # a number that bf16 has


def test_an_architecture_without_levels_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="compiles for x, and there are levels for x86_64, aarch64"):
        ship(tmp_path, Compiler(("echo", "x-y")))
