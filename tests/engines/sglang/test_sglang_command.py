"""What starts an SGLang: the options that follow from a run's settings, and those that `engine.args` may not set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.process import ReplicaAddress, ServerCommand
from ludus.engines.sglang.command import sglang_command
from ludus.engines.sglang.settings import SglangSettings
from ludus.errors import ConfigError
from ludus.models.settings import ModelSettings
from tests.engines.sglang.sglang_server import RECORD

ADDRESS = ReplicaAddress("127.0.0.1", 4711, "secret", seed=3, index=2)


def command(folder: str, *, lora: Mapping[str, Any] | None = None, **engine: Any) -> ServerCommand:
    model = ModelSettings(path=folder, dtype="bfloat16", context_length=512, **({} if lora is None else {"lora": lora}))
    return sglang_command(SglangSettings(**engine), model, ADDRESS)


def test_a_run_has_what_exact_records_need(folder: str) -> None:
    """Grammars as Ludus writes them, new tokens alone; not determinism, which costs a third of the speed."""
    words = command(folder, python="/opt/sglang/bin/python", args={"mem_fraction_static": 0.8, "log": False}).argv
    assert words[:2] == ("/opt/sglang/bin/python", "-c")
    assert list(words[3:]) == [
        *("--model-path", folder, "--host", "127.0.0.1", "--port", "4711", "--random-seed", "5"),
        *("--dtype", "bfloat16", "--tensor-parallel-size", "1", "--grammar-backend", "llguidance"),
        *("--incremental-streaming-output", "--context-length", "512", "--mem-fraction-static", "0.8"),
    ]
    asked = command(folder, deterministic=True).argv
    assert {word for word in asked if word.startswith("--")} <= {*RECORD["options"]}
    assert "--enable-deterministic-inference" in asked
    assert SglangSettings(tensor_parallel_size=4).cards_each == 4


def test_the_key_is_in_no_argument_of_a_command(folder: str, tmp_path: Path) -> None:
    """It reaches SGLang all the same, which takes it from its arguments alone, and leaves the environment."""
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    told = "import json, os, sys\nprint(json.dumps([__name__, sys.argv[1:], [*os.environ.values()]]))\n"
    (package / "launch_server.py").write_text(told)
    made = command(folder, python=sys.executable)
    assert "secret" not in " ".join(made.argv)
    environment = {**made.env, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.run(made.argv, env=environment, capture_output=True, text=True, check=True).stdout
    name, arguments, values = json.loads(printed)
    assert name == "__main__" and arguments[-2:] == ["--api-key", "secret"] and "secret" not in values


@pytest.mark.parametrize(
    ("engine", "match"),
    [
        ({"args": {"--tp-size": 2}}, "set by engine.tensor_parallel_size"),
        ({"args": {"enable-deterministic-inference": True}}, "set by engine.deterministic"),
        ({"args": {"grammar_backend": "xgrammar"}}, "nothing can be recorded exactly"),
        ({"args": {"mem_fraction_static": None}}, "has no value"),
        ({"lora": {"rank": 4}}, "adapters are not for engine.kind=sglang"),
    ],
)
def test_what_the_run_depends_on_cannot_be_taken_back(folder: str, engine: dict[str, Any], match: str) -> None:
    """It says which key sets it."""
    with pytest.raises(ConfigError, match=match):
        command(folder, **engine)
