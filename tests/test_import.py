"""What importing the package brings: its names, each with its module when it is first used, and nothing else."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ludus

ROOT = Path(__file__).parent.parent


def loaded_by(script: str) -> set[str]:
    """The modules that a new Python has after `script`."""
    script = f"import sys\n{script}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_package_alone_loads_nothing() -> None:
    """No other module of ours, and nothing of others."""
    loaded = loaded_by("import ludus")
    foreign = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    assert {name for name in loaded if name.split(".")[0] == "ludus"} == {"ludus"}
    assert not foreign & {
        *("torch", "pydantic", "starlette", "uvicorn", "httpx", "yaml", "jinja2", "tokenizers", "llguidance"),
        *("typer", "rich"),
    }


def test_settings_load_no_model() -> None:
    """Whoever configures a run waits neither for torch nor for what commands show."""
    loaded = loaded_by("import ludus; ludus.Config")
    assert not loaded & {"torch", "transformers", "peft", "typer"}


def test_a_gateway_without_administration_loads_no_routes_of_it() -> None:
    """FastAPI takes as long to load as much of the rest."""
    assert "fastapi" not in loaded_by(
        "from ludus.gateway.app import build_app\nfrom ludus.episodes.keys import SessionKeys\nbuild_app(SessionKeys())"
    )


def test_editors_and_python_read_the_same_names() -> None:
    """What stands below TYPE_CHECKING is the table; both are `__all__`, sorted, and `dir` tells them."""
    tree = ast.parse(Path(ludus.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    places = {alias.name: node.module for node in imports for alias in node.names}
    assert {name: module for name, module in places.items() if str(module).startswith("ludus.")} == ludus._MODULES
    assert ludus.__all__ == sorted([*ludus._MODULES, "__version__"])
    assert set(ludus.__all__) <= set(dir(ludus))


@pytest.mark.parametrize("name", [name for name in ludus.__all__ if name != "__version__"])
def test_a_name_is_that_of_its_module(name: str) -> None:
    """Also where a function is called as its module is: the name stays the function's."""
    value = getattr(ludus, name)
    assert value is getattr(importlib.import_module(ludus._MODULES[name]), name)
    assert getattr(ludus, name) is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As of every module."""
    with pytest.raises(AttributeError, match="module 'ludus' has no attribute 'Trainr'"):
        _ = ludus.Trainr


@pytest.mark.parametrize("command", ["import ludus", "runpy.run_path('setup.py')"], ids=["import", "install"])
def test_on_windows_one_sentence_says_where_it_runs(command: str) -> None:
    """Instead of a module that is missing somewhere below; installing from source says it too."""
    script = f"import runpy, sys; sys.platform = 'win32'; {command}"
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: Ludus runs on Linux and macOS; on Windows")
