"""Isolation ("walls") for the sandbox: which kinds this system allows, what is visible inside, how a run is started.

Knows: bubblewrap's command line, what an interpreter needs of the file system.  Knows not: limits, output.
Invariant: isolation is complete or not used; without it, code runs only if the user said so.

    own          namespaces that the jail makes by itself; as root it steps down to nobody
    bubblewrap   the same by `bwrap`, which distributions allow where they forbid namespaces to everybody
    none         a process with limits of its own, and nothing else
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ludus.errors import UserError
from ludus.processes.seccomp import filter_program

WallKind = Literal["own", "bubblewrap", "none"]
Sandboxing = Literal["required", "none"]
"""required: code runs isolated or not at all.  none: it runs without isolation, as the user's own code does."""

KEPT_FROM = frozenset({"network", "processes", "files", "kernel"})
"""What code is isolated from: any network, other processes, files of the machine, system calls it does not need."""
INSIDE = "/sandbox"
"""The only writable folder."""
_JAIL = Path(__file__).with_name("jail.py")
START_S = 20.0
"""Time for starting the interpreter on a busy machine; it does not count as the code's time."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class Walls:
    """One kind of isolation."""

    kind: WallKind
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    """Whether our own isolation is set up with root's privileges, which the code does not get."""

    @property
    def isolation(self) -> frozenset[str]:
        """What code is isolated from."""
        return frozenset() if self.kind == "none" else KEPT_FROM

    def start(self, folder: Path, order: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
        """The command of a run and its environment.

        folder: contains `main.py`, `stdin`, and two empty folders, `inside` and `root`.
        order: the limits and further instructions for jail.py.
        """
        if self.kind == "none":
            places = {"folder": str(folder / "inside"), "path": str(folder / "main.py"), "stdin": str(folder / "stdin")}
        else:
            places = {"folder": INSIDE, "path": "/main.py", "stdin": "/stdin"}
        shown, links = _view(folder)
        whole = {**order, **places, "walls": self.kind, "is_root": self.is_root}
        if self.kind != "none":
            whole["filter"] = (filter_program() or b"").hex()
        if self.kind == "own":
            whole |= {"root": str(folder / "root"), "shown": shown, "links": links}
        jail = "/jail.py" if self.kind == "bubblewrap" else str(_JAIL)
        command = [sys.executable, "-I", "-B", "-X", "utf8", jail, json.dumps(whole)]
        if self.kind == "bubblewrap":
            command = [*_bubblewrap(shown, links, int(order["disk_bytes"])), *command]
        # no more than programs need: keys and tokens of this process stay here
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return command, {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8", **threads}


def walls(sandboxing: Sandboxing = "required") -> Walls:
    """The best isolation that works here; blocks for a moment on the first call.

    Raises UserError, with what is missing and what to do, if isolation is required and none works.
    """
    if sandboxing == "none":
        return Walls("none")
    if not sys.platform.startswith("linux"):
        raise UserError(
            f"a model's code can be kept in on Linux alone, and this is {sys.platform}: run Ludus in a Linux "
            "container or virtual machine, or run the code unprotected with sandbox: none in the tool's config"
        )
    stands, missing = _found()
    if not stands:
        raise UserError(
            f"this system cannot keep a model's code in: {'; '.join(missing)}. Install bubblewrap, allow user "
            "namespaces, or give the container --security-opt seccomp=unconfined and systempaths=unconfined; or run "
            "the code unprotected with sandbox: none in the tool's config"
        )
    return Walls(stands[0])


@functools.cache
def _found() -> tuple[tuple[WallKind, ...], tuple[str, ...]]:
    """The kinds of isolation that work here, best first, and why the others do not."""
    stands: list[WallKind] = []
    missing: list[str] = []
    # root's own walls give the code another user, which bubblewrap's do not
    order: tuple[WallKind, ...] = ("own", "bubblewrap") if os.geteuid() == 0 else ("bubblewrap", "own")
    for kind in order:
        if lack := _lack(kind):
            missing.append(f"{'namespaces' if kind == 'own' else kind}: {lack}")
        else:
            stands.append(kind)
    return tuple(stands), tuple(missing)


def standing() -> tuple[WallKind, ...]:
    """The kinds of isolation that work here, best first."""
    return _found()[0]


def _lack(kind: WallKind) -> str:
    """Why this kind of isolation does not work here, found by a trial run. '': it works."""
    if not sys.platform.startswith("linux"):
        return f"they are Linux's, and this is {sys.platform}"
    if filter_program() is None:
        return f"the system calls of {platform.machine()} are not known"
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    with tempfile.TemporaryDirectory(prefix="ludus-sandbox-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        prepare(folder, "", "")
        reads, writes = os.pipe()
        limits = {"memory_bytes": 1 << 30, "disk_bytes": 1 << 20, "num_inodes": 64, "num_files": 64}
        order = {**limits, "num_processes": 16, "cpu_s": 10, "report_fd": writes, "shows_last": False}
        command, env = Walls(kind).start(folder, order)
        try:
            done = subprocess.run(
                command,
                env=env,
                pass_fds=(writes,),
                capture_output=True,
                timeout=START_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return f"no start within {START_S:g} s"
        finally:
            os.close(writes)
            with os.fdopen(reads, "rb") as pipe:
                report = pipe.read()
    if done.returncode == 0 and report == b"{}":
        return ""
    said = json.loads(report).get("missing", "") if report else done.stderr.decode(errors="replace").strip()
    return said.splitlines()[-1] if said else f"exit status {done.returncode}"


def prepare(folder: Path, code: str, stdin: str) -> None:
    """Write what `Walls.start` needs into the folder of a run."""
    for name in ("inside", "root"):
        (folder / name).mkdir()
    for name, text in (("main.py", code), ("stdin", stdin)):
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
        (folder / name).chmod(0o644)  # for nobody, whom root's code runs as


def _view(folder: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What is visible inside: (file or folder, its name there), and (target, name) of links."""
    shown = [(str(folder / name), f"/{name}") for name in ("main.py", "stdin")]
    links = [("/proc/self/fd", "/dev/fd"), (INSIDE, "/dev/shm")]
    for path in _SYSTEM:
        if os.path.islink(path):  # noqa: PTH114  as the others here: text
            links.append((os.readlink(path), path))  # noqa: PTH115
        elif Path(path).is_dir():
            shown.append((path, path))
    shown += [(path, path) for path in (*_SETTINGS, *_DEVICES) if Path(path).exists()]
    shown += [(path, path) for path in _interpreter()]
    if not any(target.startswith("/tmp/") for _, target in shown):
        links.append((INSIDE, "/tmp"))
    return shown, links


def _interpreter() -> Iterator[str]:
    """Folders of the interpreter and its installed packages, without folders inside others."""
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    wanted = dict.fromkeys((*_SYSTEM, sys.base_prefix, sys.prefix, *libraries))
    for path in wanted:
        parents = {str(parent) for parent in Path(path).parents}
        if path not in _SYSTEM and not parents & wanted.keys() and Path(path).is_dir():
            yield path


def _bubblewrap(shown: list[tuple[str, str]], links: list[tuple[str, str]], disk_bytes: int) -> list[str]:
    # the whole path: what it is started with has a PATH of its own, in which it may not be
    bwrap = shutil.which("bwrap") or "bwrap"
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox"]
    for source, target in (*shown, (str(_JAIL), "/jail.py")):
        is_device = source in _DEVICES
        command += ["--dev-bind" if is_device else "--ro-bind", source, target]
        command += ["--remount-ro", target] if is_device else []
    for target, name in links:
        command += ["--symlink", target, name]
    command += [
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        "--size",
        str(disk_bytes),
        "--tmpfs",
        INSIDE,
        "--remount-ro",
        "/",
    ]
    return [*command, "--chdir", INSIDE, "--cap-drop", "ALL", "--"]
