"""A running server of training whose work is scripted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.serve.scripted import ScriptedWorkshop, Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "server", ScriptedWorkshop()) as one:
        yield one
