"""OpenSSH's own server on a free port of this machine, with keys and a configuration of its own.

Nothing of the system's or the user's ssh is read or written: neither /etc/ssh, nor ~/.ssh, nor an agent.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin")
_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/user.pub
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
AllowTcpForwarding yes
"""


class Sshd:
    """One that a test may stop and start again, and whose connections it may cut."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        for name in ("host", "user"):
            command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
            subprocess.run(command, check=True)
        host_key = (folder / "host.pub").read_text().split()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key[0]} {host_key[1]}\n")
        words = " ".join(f'"{name}={value}"' for name, value in environment.items())
        config = _CONFIG.format(port=self.port, folder=folder) + (f"SetEnv {words}\n" if words else "")
        (folder / "config").write_text(config)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def destination(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1"

    @property
    def options(self) -> tuple[str, ...]:
        """Of the ssh command, so that it comes here and reads nothing else."""
        words = ("IdentitiesOnly=yes", f"UserKnownHostsFile={self._folder / 'known'}", "GlobalKnownHostsFile=/dev/null")
        own = ("-F", "none", "-i", str(self._folder / "user"), "-p", str(self.port))
        return (*own, *(part for word in words for part in ("-o", word)))

    def start(self) -> None:
        assert SSHD is not None
        if os.geteuid() == 0:  # where a started system has it already; only root's sshd wants it
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = self._folder / "sshd.log"
        command = (SSHD, "-D", "-f", str(self._folder / "config"), "-E", str(log))
        self._process = subprocess.Popen(command)
        while self._process.poll() is None:
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
        raise AssertionError(log.read_text())

    def cut(self) -> int:
        """Ends every connection that it carries, as a network does that fails; how many there were."""
        assert self._process is not None
        asked = subprocess.run(("pgrep", "-P", str(self._process.pid)), capture_output=True, text=True, check=False)
        pids = asked.stdout.split()
        if pids:
            subprocess.run(("kill", "-KILL", *pids), check=False)
        return len(pids)

    def stop(self) -> None:
        """Nobody is there any more; connections that it carries are cut."""
        if self._process is not None:
            self.cut()
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def sshd(folder: Path, environment: Mapping[str, str] = MappingProxyType({})) -> Iterator[Sshd]:
    """A running one until the block ends. environment: of what is run over it, on top of the usual."""
    folder.mkdir(parents=True)
    server = Sshd(folder, environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()
