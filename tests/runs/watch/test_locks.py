from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ludus.processes.files import hold
from ludus.runs.watch.locks import is_held


def test_a_lock_is_seen_and_left_alone(tmp_path: Path) -> None:
    """Of this process and of another; who looks never stands in the way of who takes it."""
    path = tmp_path / "writer.lock"
    assert not is_held(path)
    held = hold(path)
    assert held is not None and is_held(path)
    os.close(held)
    assert not is_held(path)
    script = "import sys; from pathlib import Path; from ludus.processes.files import hold\n"
    script += "hold(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert is_held(path) and hold(path) is None
        other.communicate("")
    assert not is_held(path)
