"""Compiles a C++ source of this folder for this machine's processor, once per source, compiler and processor.

Knows: compilers, the user's cache folder, CXX and CXXFLAGS.  Knows not: torch.
Invariant: only what this user compiled, or the package brought along, is loaded; a cache that others can write to is
refused.
`python -m ludus.kernels.build` compiles all ahead of first use and says where the libraries are, or why they are not.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

from ludus.errors import BackendError
from ludus.kernels.levels import shipped_library
from ludus.processes.files import OWNER_ALONE, user_cache, write_whole

T = TypeVar("T")
logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_COMPILERS = ("g++", "c++", "clang++")
# No -ffast-math: it would make every thread of the process flush denormals as soon as the library is loaded.
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math")
OPENMP = "-fopenmp"
POOL = "threads"
"""The source of the threads that libraries compiled without OpenMP work on; it computes nothing itself."""
_NATIVE = ("-march=native", "-mcpu=native")
# Tried in turn: some compilers lack OpenMP's library (clang without libomp, Apple's), some a name for their own
# processor. Without OpenMP threads are those of threads.cpp, and loops are still vectorised for this processor.
_VARIANTS = (
    *((native, OPENMP) for native in _NATIVE),
    *((native, "-fopenmp-simd") for native in _NATIVE),
    (OPENMP,),
    ("-fopenmp-simd",),
    (),
)
# A compilation takes two seconds; far beyond that something hangs.
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler as it is called."""

    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    """The user's own, which come last and so decide."""

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True, slots=True)
class Build:
    """How a library was compiled."""

    compiler: str
    flags: tuple[str, ...]
    """Of the variant that the compiler took, and the user's own."""
    is_shipped: bool = False
    """It came with the package: nothing was compiled here."""

    @property
    def has_openmp(self) -> bool:
        said = [flag for flag in self.flags if flag in (OPENMP, "-fno-openmp")]
        return said[-1:] == [OPENMP]

    @property
    def is_native(self) -> bool:
        """For this processor, or for the one that the user named."""
        return any(flag.startswith(("-march=", "-mcpu=")) for flag in self.flags)

    @property
    def cost(self) -> str | None:
        """What is slower than it could be, and what would help. None: nothing."""
        if self.is_shipped:
            return "our kernels came with the package, for any processor of their level; install g++ for quicker ones"
        if not self.has_openmp:
            return (
                f"{self.compiler} has no OpenMP, so our kernels share work among threads that sleep in between, which "
                "takes longer for small pieces; install g++, or clang's libomp, or set CXX to a compiler that has it"
            )
        if not self.is_native:
            return f"{self.compiler} cannot build for this very processor; install g++, or set CXX to another compiler"
        return None


def build_library(name: str, cache: Path | None = None) -> Path:
    """Path of the library compiled from `name`.cpp; compiles it if it is not in the cache yet.

    Where it cannot be compiled it is the one that the package brought along, with a warning.

    cache: folder to keep it in. None: the user's.
    Raises BackendError, if none was brought along, where there is no compiler, where it fails (the message is its own),
    or where others than this user could have written what lies in the cache.
    """
    try:
        return _compiled(name, cache)
    except BackendError as error:
        shipped = shipped_library(name)
        if shipped is None:
            raise
        _warn(f"our kernels are those for {shipped.parent.name}, which came with the package: {error}")
        return shipped


def _compiled(name: str, cache: Path | None) -> Path:
    source = source_path(name)
    compiler = find_compiler()
    folder = (cache or user_cache() / "native") / _key(compiler, source)
    library = folder / f"{name}.so"
    try:
        if not library.exists():
            folder.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
            compile_source(compiler, source, library)
        for path in (folder, library):
            _check_own(path)
    except OSError as error:
        raise BackendError(f"cannot keep the compiled {source.name} in {folder}: {error}") from error
    build = build_of(library)
    if build.cost is not None:
        _warn(build.cost)
    if not build.has_openmp and name != POOL:  # ahead of use too; where it fails whoever loads the library is told why
        obtain(lambda: _compiled(POOL, cache))
    return library


def build_of(library: Path) -> Build:
    """How a library that `build_library` gave was compiled."""
    values = json.loads(record_of(library).read_text())
    return Build(values["compiler"], tuple(values["flags"]), values.get("is_shipped", False))


def record_of(library: Path) -> Path:
    """Where it says how a library was compiled."""
    return library.with_suffix(".json")


def _check_own(path: Path) -> None:
    """Raises BackendError if somebody else could have put there what we would load into this process."""
    state = path.stat()
    if state.st_uid in (os.geteuid(), 0) and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    raise BackendError(
        f"{path} belongs to user {state.st_uid} with mode {stat.S_IMODE(state.st_mode):o}: others could have written "
        "what would be loaded from it; remove it, or set XDG_CACHE_HOME to a folder of your own"
    )


@cache
def _warn(cost: str) -> None:
    """Once in a process, for all libraries."""
    logger.warning("%s", cost)


def obtain(make: Callable[[], T], unsupported_reason: str | None = None) -> T | str:
    """What `make` gives, or why it cannot be had: `unsupported_reason`, or the failure to build or open its library."""
    if unsupported_reason is not None:
        return unsupported_reason
    try:
        return make()
    except (BackendError, OSError) as error:
        return str(error)


def source_path(name: str) -> Path:
    """The C++ source called `name`."""
    return _FOLDER / f"{name}.cpp"


def source_names() -> list[str]:
    """What computes: every C++ source of this folder but the threads', without its ending."""
    return sorted(source.stem for source in _FOLDER.glob("*.cpp") if source.stem != POOL)


def find_compiler() -> Compiler:
    """What CXX and CXXFLAGS say, as for make; else the first C++ compiler on the path."""
    own = shlex.split(os.environ.get("CXX", ""))
    flags = tuple(shlex.split(os.environ.get("CXXFLAGS", "")))
    if own:
        found = shutil.which(own[0])
        if found is None:
            raise BackendError(f"CXX={os.environ['CXX']!r} names no program; unset it, or name a C++ compiler")
        return Compiler((found, *own[1:]), flags)
    for name in _COMPILERS:
        found = shutil.which(name)
        if found:
            return Compiler((found,), flags)
    raise BackendError(f"no C++ compiler found; any of {', '.join(_COMPILERS)} would do")


def compile_source(
    compiler: Compiler, source: Path, library: Path, variants: Sequence[tuple[str, ...]] = _VARIANTS
) -> None:
    """Writes `library`, and beside it how it was made, with the first set of flags that `compiler` takes.

    It compiles beside the target, then renames: whoever compiles at the same time sees all of it or nothing.
    """
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        complaint = ""
        for variant in variants:
            command = [*compiler.command, *FLAGS, *variant, *compiler.flags, "-o", str(built), str(source)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise BackendError(f"{compiler} took more than {_TIMEOUT_S} s for {source.name}") from error
            if done.returncode == 0:
                made = {"compiler": str(compiler), "flags": [*variant, *compiler.flags]}
                write_whole(record_of(library), json.dumps(made))
                built.chmod(built.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
                built.replace(library)
                return
            complaint = complaint or done.stderr.strip()[:400]
    raise BackendError(f"{compiler} could not compile {source.name}: {complaint}")


def _key(compiler: Compiler, source: Path) -> str:
    headers = [header.read_text() for header in sorted(_FOLDER.glob("*.h"))]
    parts = (source.read_text(), *headers, version_of(compiler), repr((FLAGS, _VARIANTS, compiler)), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@lru_cache
def version_of(compiler: Compiler) -> str:
    """What the compiler says of itself."""
    done = subprocess.run(
        [*compiler.command, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    return done.stdout


@lru_cache
def _processor() -> str:
    """What decides on the instructions that `-march=native` uses."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return f"{platform.machine()} {platform.processor()}"
    chosen = ("model name", "flags", "Features", "CPU part")
    lines = facts.read_text().split("\n\n")[0].splitlines()
    return platform.machine() + "\n".join(line for line in lines if line.startswith(chosen))


def main() -> None:
    """Compile ahead of first use. A machine that cannot is served too, so this reports it and does not fail."""
    for name in source_names():
        try:
            sys.stdout.write(f"native {name}: {build_library(name)}\n")
        except BackendError as error:
            sys.stdout.write(f"no native {name}, everything will take about twice as long: {error}\n")


if __name__ == "__main__":
    main()
