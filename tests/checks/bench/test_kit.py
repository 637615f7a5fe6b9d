"""What a machine with a card lacks: the lists are complete, and what is packed arrives as it was."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from ludus.checks.bench.runner import CHECKOUT

KIT = CHECKOUT / "bench" / "kit"
# What the tests on a card and `ludus bench gpu` begin with.
BEGINNINGS = (
    *("ludus/cli/bench_gpu.py", "ludus/checks/bench/runner.py", "ludus/checks/bench/learn.py"),
    *("ludus/checks/bench/sample.py", "ludus/checks/bench/train.py", "ludus/checks/bench/step.py"),
    *("ludus/cli/models.py", "ludus/models/fetch.py", "ludus/models/untrained.py", "ludus/kernels/triton_rowwise.py"),
    *("tests/gpu/on_card.py", "tests/conftest.py", "ludus/engines/local/kernels/triton.py"),
)
TOOLS = ("pytest", "pytest-timeout", "hypothesis")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_in(file: Path) -> set[str]:
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return {normal(line.split("==")[0]) for line in lines if line}


@pytest.fixture
def fill() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill", KIT / "fill.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needs(requirements: list[str]) -> Iterator[str]:
    for each in map(Requirement, requirements):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            yield normal(each.name)


def test_what_the_package_requires_is_there_or_packed() -> None:
    """Requirements of the base install, of training and of the tests, and what these require in turn; only what the
    machine has is not looked into."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    has, packed = names_in(KIT / "machine.txt"), names_in(KIT / "wheels.txt")
    assert not has & packed
    extras = [each for name in ("train", "quantization") for each in project["optional-dependencies"][name]]
    wanted = [*needs([*project["dependencies"], *extras, *TOOLS])]
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        assert name in has | packed, f"{name} is neither in machine.txt nor in wheels.txt of bench/kit"
        if name in packed and name not in seen:
            wanted += needs(metadata.requires(name) or [])
        seen.add(name)
    assert packed <= seen, f"nobody needs {packed - seen}"


def test_what_is_imported_is_there_or_packed() -> None:
    """Every module that is imported on the way, in the package and in the tests, outside of functions."""
    known = {normal(name) for name in names_in(KIT / "machine.txt") | names_in(KIT / "wheels.txt")}
    of_module = metadata.packages_distributions()
    for name, file in sorted(imported(CHECKOUT / each for each in BEGINNINGS).items()):
        if name in sys.stdlib_module_names or name in ("triton", "_typeshed"):
            continue
        packages = {normal(each) for each in of_module.get(name, [name])}
        assert packages & known, f"{file} imports {name}, and no package of bench/kit has it"


def imported(files: Iterator[Path]) -> dict[str, Path]:
    """Names of other people's modules, each with a file that imports it."""
    found: dict[str, Path] = {}
    seen: set[Path] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for module in modules_of(file):
            own = CHECKOUT.joinpath(*module.split("."))
            places = (own.with_suffix(".py"), own / "__init__.py")
            if module.split(".")[0] in ("ludus", "ludus_vllm", "tests"):
                todo += [place for place in places if place.is_file()]
            else:
                found.setdefault(module.split(".")[0], file)
    return found


@functools.cache
def modules_of(file: Path) -> tuple[str, ...]:
    """What a file imports when it is imported itself."""
    names: list[str] = []
    todo: list[ast.AST] = list(ast.parse(file.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ClassDef | ast.If | ast.With):
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            todo += [] if is_for_types else node.body
    return tuple(names)


def test_versions_are_those_of_the_environment_of_cards() -> None:
    """Which `make test-card-env` tests."""
    pinned = names_in(CHECKOUT / "tests" / "card_env" / "constraints.txt")
    assert names_in(KIT / "wheels.txt") <= pinned


def test_what_is_packed_arrives(fill: ModuleType, tmp_path: Path) -> None:
    """In folders that are small enough, whatever the size of a file; a missing and a damaged piece are named."""
    files = []
    for name, size in (("a.whl", 100), ("b.whl", 30_000), ("c.whl", 0), ("d.whl", 9000)):
        (tmp_path / name).write_bytes(bytes(number % 251 for number in range(size)))
        files.append(tmp_path / name)
    most_bytes = 12_000
    count = fill.pack(files, tmp_path / "gpu-kit", most_bytes=most_bytes)
    folders = sorted((tmp_path / "gpu-kit").iterdir())
    assert [each.name for each in folders] == [str(number + 1) for number in range(count)] and count > 2
    assert all(sum(file.stat().st_size for file in each.iterdir()) <= most_bytes for each in folders)
    assert fill.pack(files, tmp_path / "large", most_bytes=10**6) == 1
    listed = {each["name"]: each for each in json.loads((folders[0] / "kit.json").read_text())["files"]}
    install = folders[0] / "install.py"
    joins = (
        f"import runpy, sys, json; own = runpy.run_path({str(install)!r}); "
        "[own['join'](each['pieces'], own['KIT'] / 'wheels' / each['name'], each['sha256']) "
        "for each in json.loads((own['KIT'] / '1' / 'kit.json').read_text())['files']]"
    )
    command = [sys.executable, "-S", "-c", joins]
    assert subprocess.run(command, check=False).returncode == 0
    assert all((tmp_path / "gpu-kit" / "wheels" / each.name).read_bytes() == each.read_bytes() for each in files)
    piece = tmp_path / "gpu-kit" / listed["b.whl"]["pieces"][1]
    piece.write_bytes(b"x" + piece.read_bytes()[1:])
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "b.whl is damaged" in done.stderr
    piece.unlink()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and f"bring folder {piece.parent.name} of the kit here too" in done.stderr
