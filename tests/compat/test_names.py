"""The originals' modules: found by their paths, loaded when asked; a name has one object; errors say what there is."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import cloudpickle
import pytest

import ludus.compat
from ludus.compat import art, verl
from ludus.compat.areal.api import workflow_api
from ludus.compat.areal.infra import workflow_context
from ludus.compat.names import FAMILIES, HERE, Table, hint, load

PLACES = sorted((family, path) for family in FAMILIES for path in Table.of(family).modules)


def module_of(family: str, path: str) -> ModuleType:
    return importlib.import_module(f"{HERE}.{family}.{path}".rstrip("."))


def run(code: str) -> str:
    """What a fresh interpreter says."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("family", "path"), PLACES, ids=lambda value: value or "-")
def test_every_name_of_the_tables_is_there(family: str, path: str) -> None:
    """A module has exactly the names of its table, each the object that stands where the table says."""
    module, names = module_of(family, path), Table.of(family).names(path)
    assert module.__all__ == sorted(names)
    for name, target in names.items():
        assert getattr(module, name) is load(target)


def test_nothing_is_loaded_before_a_name_is_read() -> None:
    """Importing a family, or a module of it, loads the tables alone."""
    code = (
        "import sys, ludus.compat.verl, ludus.compat.areal.api.workflow_api\n"
        "print(sorted(name for name in sys.modules if name.startswith('ludus.compat.')))"
    )
    assert run(code) == str(
        sorted(
            f"{HERE}.{name}"
            for name in (
                *("areal", "areal.api", "areal.api.workflow_api", "names", "originals", "originals.extension"),
                *("originals.path", "verl"),
            )
        )
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_no_file_of_ours_has_a_name_of_theirs(family: str) -> None:
    """A file or a folder would stand before the table, whatever it holds."""
    theirs = {path.partition(".")[0] for path in Table.of(family).modules if path}
    folder = Path(ludus.compat.__path__[0], family)
    assert not theirs & {file.stem for file in folder.iterdir() if file.suffix == ".py"}
    assert not [file for file in folder.iterdir() if file.is_dir() and file.name != "__pycache__"]


def test_modules_are_attributes_of_their_packages() -> None:
    """`import a.b.c`, `from a.b import c` and `a.b.c` are one module, also before anybody imported it."""
    assert workflow_api is importlib.import_module("ludus.compat.areal.api.workflow_api")
    assert run("import ludus.compat.art as art; print(art.dev.InitArgs)") == "<class 'dict'>"
    assert {"agent_loop", "AgentLoopBase"} <= set(dir(verl.experimental.agent_loop))
    assert "experimental" in dir(verl)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from ludus.compat.areal.api.workflow_api import RolloutWorkflw", "did you mean 'RolloutWorkflow'?"),
        ("from ludus.compat.areal.api.engine_api import Nope", "areal.api.engine_api.Nope is not here"),
        ("from ludus.compat.areal.api.engine_api import Nope", "areal.api.engine_api has InferenceEngine"),
        ("import ludus.compat.areal.engine.fsdp", "docs/coming-from-areal.md"),
        ("from ludus.compat.verl import tool", "did you mean 'tools'?"),
    ],
)
def test_what_is_missing_is_said_with_the_nearest(code: str, said: str) -> None:
    """An ImportError that names what there is, and the page with all of it."""
    with pytest.raises(ModuleNotFoundError, match="is not here") as raised:
        exec(code, {})
    assert said in str(raised.value)


def test_a_missing_attribute_is_an_attribute_error() -> None:
    """`hasattr` and `getattr` with a default work as on any module."""
    assert not hasattr(workflow_api, "Nope") and getattr(workflow_api, "__wrapped__", None) is None
    with pytest.raises(AttributeError, match="did you mean 'AgentWorkflow'"):
        _ = workflow_api.AgentWorkflw


def test_modules_travel_by_name() -> None:
    """Pickled, copied, and inside a function that a worker process is sent."""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(workflow_context)) is workflow_context
    assert copy.deepcopy(workflow_context) is workflow_context
    assert pickle.loads(pickle.dumps(verl.AgentLoopOutput)) is verl.AgentLoopOutput


def test_a_name_and_a_module_that_are_called_alike() -> None:
    """`art.retry` stays the function, whichever module is imported afterwards."""
    assert callable(art.yield_trajectory) and art.retry is art.utils.retry


def test_they_can_be_reloaded_and_patched() -> None:
    """A reload finds the names anew; a patch is undone."""
    known = workflow_api.RolloutWorkflow
    assert importlib.reload(workflow_api) is workflow_api and workflow_api.RolloutWorkflow is known
    with patch("ludus.compat.areal.api.workflow_api.RolloutWorkflow", 1):
        assert module_of("areal", "api.workflow_api").RolloutWorkflow == 1
    assert workflow_api.RolloutWorkflow is known


def test_where_a_module_comes_from_is_shown() -> None:
    """Its repr names the table."""
    assert "ludus.compat.areal (names.toml)" in repr(workflow_api)
    assert importlib.util.find_spec("ludus.compat.areal.api.workflow_api") is not None


def test_import_strings_of_the_originals_are_told_their_place() -> None:
    """A hint for errors about them; none for anything else."""
    assert hint("verl.tools.base_tool.BaseTool") == "; here it is 'ludus.compat.verl.tools.base_tool.BaseTool'"
    assert hint("mine.Agent") == ""
