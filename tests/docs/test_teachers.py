"""The examples of docs/teachers.md run, and its configuration is one."""

from __future__ import annotations

import re

import pytest
import yaml

from ludus.config import Config
from ludus.teachers.settings import ModelTeacherSettings
from tests.docs.pages import DOCS, blocks, run_block


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for code, printed in blocks("teachers.md"):
        run_block(code, {})
        assert capsys.readouterr().out == printed


def test_the_configuration_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "teachers.md").read_text(), re.DOTALL | re.MULTILINE)
    config = Config.of(yaml.safe_load(text))
    assert isinstance(config.teacher, ModelTeacherSettings) and config.algorithm.distillation is not None
