"""What a command line changes in a script: models, keys, constants; each acts or is an error that names it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ludus.compat import overrides
from ludus.compat.config import Config, load_config
from ludus.compat.tokenizer import load_hf_tokenizer
from ludus.errors import ConfigError, UserError


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables are as before when the test has ended."""
    for variable in (overrides.MODELS, overrides.SETTINGS):
        monkeypatch.setenv(variable, "")


def constants(source: str, **given: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(overrides.with_constants(ast.parse(source), given, "it.py"), "it.py", "exec"), names)
    return names


def test_variables_of_the_environment_are_constants_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a script sets at its top level; their values are texts."""
    monkeypatch.setenv("KEY", "")
    constants("import os\nos.environ['KEY'] = ''\nassert os.environ['KEY'] == '12'\n", KEY="12")
    with pytest.raises(UserError, match=r"-p KY: it\.py assigns no such name at top level; did you mean 'KEY'"):
        constants("import os\nos.environ['KEY'] = ''\n", KY="12")


def test_models_by_name_and_address() -> None:
    """A place is loaded or asked, whichever it is; other names are themselves."""
    overrides.put(models=["big/model=small", "gpt-4.1=http://127.0.0.1:1/v1"])
    assert (overrides.model("big/model"), overrides.model("other")) == ("small", "other")
    assert overrides.address(None, "other", "gpt-4.1") == "http://127.0.0.1:1/v1"
    assert overrides.address("big/model") is None
    with pytest.raises(ConfigError, match=r"gpt-4\.1=http://127\.0\.0\.1:1/v1: it is loaded here"):
        overrides.model("gpt-4.1")


def test_what_was_put_later_stands_above() -> None:
    """A process that was started by one with its own overrides adds to them."""
    overrides.put(settings=["gconfig.n_samples=4", "seed=1"], models=["a=b"])
    overrides.put(settings=["gconfig.n_samples=2"], models=["a=c"])
    assert overrides.count("gconfig.n_samples") == 2 and overrides.count("total_train_steps") is None
    assert overrides.model("a") == "c"


def test_a_configuration_is_read_with_them(tmp_path: Path) -> None:
    """Above the file and the command line's own overrides; the model's name too."""
    overrides.put(models=["Qwen/Qwen3-8B=smollm2-135m"], settings=["total_train_steps=3", "model.dtype=float32"])
    config = load_config(None, ["model.path=Qwen/Qwen3-8B", "total_train_steps=9"])
    assert (config.model.path, config.model.dtype, config.total_train_steps) == ("smollm2-135m", "float32", 3)
    assert Config.of({"seed": 5}).total_train_steps == 3


def test_a_tokenizer_is_that_of_the_model_in_its_place(tiny_model_folder: Path) -> None:
    """Scripts of AReaL's load one by the model's name."""
    overrides.put(models=[f"Qwen/none-of-that-name={tiny_model_folder}"])
    assert load_hf_tokenizer("Qwen/none-of-that-name").name_or_path == str(tiny_model_folder)


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        ("N = 100", {"N": "3"}, 3),
        ("N: int = 100", {"N": "3"}, 3),
        ("import os\nif True:\n    N = int(os.environ['NONE'])", {"N": "2"}, 2),
        ("N = 1\nN = N + 1", {"N": "[1, {a: x}]"}, [1, {"a": "x"}]),
        ("N = M = 'a'", {"N": "some text"}, "some text"),
        ("N = 'a'", {"N": "2026-11-24"}, "2026-11-24"),
        ("N = 'a'", {"N": "null"}, None),
        ("N = 'a'", {"N": "None"}, None),
        ("N = 1.0", {"N": "1e-5"}, 1e-5),
        ("N = 'a'", {"N": "{'a': (1, None)}"}, {"a": (1, None)}),
        ("N = 'a'", {"N": "{[]: 1}"}, "{[]: 1}"),
    ],
)
def test_constants_are_replaced(source: str, given: dict[str, str], expected: object) -> None:
    """Values as Python writes them, or YAML; a date, for which Python has no literal, is its text."""
    assert constants(source, **given)["N"] == expected


def test_a_constant_that_is_not_there_is_named_with_those_that_are() -> None:
    """A local of a function is none."""
    with pytest.raises(UserError, match=r"-p STEPS: it\.py assigns no such name at top level; did you mean 'STEP'"):
        constants("STEP = 1\ndef f():\n    STEPS = 2", STEPS="3")
    with pytest.raises(UserError, match="there are none"):
        constants("def f():\n    N = 2", N="3")


@pytest.mark.parametrize(
    ("put", "said"),
    [
        ({"models": ["gpt-4.1"]}, "NAME=PATH or NAME=URL"),
        ({"settings": ["seed"]}, "key=value"),
    ],
)
def test_another_form_is_refused(put: dict[str, list[str]], said: str) -> None:
    """Before the script runs."""
    with pytest.raises(UserError, match=said):
        overrides.put(**put)


@pytest.mark.parametrize("value", ["0", "many", "1.5"])
def test_a_count_is_a_whole_number(value: str) -> None:
    """From 1."""
    overrides.put(settings=[f"total_train_steps={value}"])
    with pytest.raises(ConfigError, match=r"total_train_steps=.* must be a whole number"):
        overrides.count("total_train_steps")


@pytest.mark.parametrize("given", ["N", "a.b=1", "=1"])
def test_a_constant_has_a_name_and_a_value(given: str) -> None:
    """Else it is an error."""
    with pytest.raises(UserError, match="NAME=VALUE"):
        overrides.constant(given)
