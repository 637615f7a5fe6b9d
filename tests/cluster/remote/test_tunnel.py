"""A connection that is kept: made again when it breaks, ended when its owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ludus.cluster.remote.tunnel import Tunnel
from tests.cluster.remote.conftest import ROOT


def carrying(folder: Path) -> list[str]:
    """A command as ssh is one: it notes its pid, says that it carries, ends with its input."""
    return ["sh", "-c", f"echo $$ >> {folder}/pids; echo open; exec cat > /dev/null"]


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(tunnel: Tunnel, num_opened: int) -> None:
    waited = threading.Event()
    while tunnel.num_opened < num_opened or tunnel.why_closed is not None:
        waited.wait(0.01)


def test_it_is_made_again_until_it_is_closed(tmp_path: Path) -> None:
    """Whatever ends it; once closed nothing is left."""
    tunnel = Tunnel(carrying(tmp_path))
    assert tunnel.why_closed == "it was not opened"
    assert tunnel.open() is None
    for number in (1, 2):
        os.kill(pids(tmp_path)[-1], signal.SIGKILL)
        wait_until(tunnel, number + 1)
    tunnel.close()
    tunnel.close()
    assert len(pids(tmp_path)) == 3 and not any(lives(pid) for pid in pids(tmp_path))


def test_why_it_cannot_be_made_is_known(tmp_path: Path) -> None:
    """With the message of the command; it is tried on, and carries as soon as that works."""
    script = f"test -e {tmp_path}/way || {{ echo 'no way to there' >&2; exit 255; }}; echo open; exec cat > /dev/null"
    tunnel = Tunnel(["sh", "-c", script])
    assert tunnel.open() == "no way to there"
    assert repr(tunnel) == "Tunnel('no way to there', opened=0)"
    (tmp_path / "way").touch()
    wait_until(tunnel, 1)
    assert repr(tunnel) == "Tunnel(open, opened=1)"
    tunnel.close()


def test_it_ends_with_the_process_that_owns_it(tmp_path: Path) -> None:
    """Also where that is killed with `kill -9`."""
    source = (
        "from pathlib import Path\nfrom tests.cluster.remote.test_tunnel import carrying\n"
        "from ludus.cluster.remote.tunnel import Tunnel\n"
        f"Tunnel(carrying(Path({str(tmp_path)!r}))).open()\nprint('open', flush=True)\ninput()\n"
    )
    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, "-c", source], stdin=pipe, stdout=pipe, cwd=ROOT)
    assert owner.stdout is not None and owner.stdout.readline() == b"open\n"
    (pid,) = pids(tmp_path)
    assert lives(pid)
    owner.kill()
    owner.communicate()
    while lives(pid):
        threading.Event().wait(0.01)
