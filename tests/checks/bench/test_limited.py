"""Commands that end, and commands that are ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ludus.checks.bench.limited import run_limited
from tests.processes.conftest import wait_until_gone

STARTER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_command_ends_by_itself(tmp_path: Path) -> None:
    """Its code, what it wrote, and the folder that it ran in."""
    script = "import os, sys; print(os.getcwd()); print('why', file=sys.stderr); sys.exit(3)"
    done = run_limited([sys.executable, "-S", "-c", script], limit_s=60, folder=tmp_path)
    assert (done.code, done.out.strip(), done.last_lines(1)) == (3, str(tmp_path), "why")
    with pytest.raises(FileNotFoundError):
        run_limited([str(tmp_path / "python")])


def test_what_a_command_started_ends_with_it() -> None:
    """At the limit the whole group is killed, and what was written until then is kept."""
    done = run_limited([sys.executable, "-S", "-c", STARTER], limit_s=3)
    assert done.code is None
    wait_until_gone(int(done.out))
