"""Compiles a C++ source of this folder for this machine's processor, once per source, compiler and processor.

Knows: compilers, the user's cache folder, CXX and CXXFLAGS.  Knows not: torch.
Invariant: only libraries that this user compiled, or that came with the package, are loaded; a cache that other users
can write to is refused.
`python -m ludus.kernels.build` compiles all sources ahead of first use, and prints the libraries' paths or the errors.
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
from ludus.machine import Machine
from ludus.processes.files import OWNER_ALONE, sync, user_cache

T = TypeVar("T")
logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_COMPILERS = ("g++", "c++", "clang++")
# No -ffast-math: loading such a library makes every thread of the process flush denormals.
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math")
OPENMP = "-fopenmp"
POOL = "threads"
"""Source of the thread pool for libraries compiled without OpenMP; it has no kernels."""
_NATIVE = ("-march=native", "-mcpu=native")
# Tried in turn: some compilers lack OpenMP's library (clang without libomp, Apple's), some support no -march=native.
# Without OpenMP the kernels use the threads of threads.cpp, and loops are still vectorised for this processor.
_WITH_OPENMP = tuple((native, OPENMP) for native in _NATIVE)
_WITHOUT_OPENMP = tuple((native, "-fopenmp-simd") for native in _NATIVE)
_VARIANTS = (*_WITH_OPENMP, *_WITHOUT_OPENMP, (OPENMP,), ("-fopenmp-simd",), ())
# torch brings LLVM's OpenMP along there, which ends a process into which a second copy of it is loaded.
_VARIANTS_ON_MAC = (*_WITHOUT_OPENMP, ("-fopenmp-simd",), ())
# A compilation takes about two seconds; one that takes far longer hangs.
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler, and how it is called."""

    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    """The user's flags, which come last and so override ours."""

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True, slots=True)
class Build:
    """How a library was compiled."""

    compiler: str
    flags: tuple[str, ...]
    """Flags of the variant that the compiler accepted, and the user's."""
    is_shipped: bool = False
    """Whether it came with the package, and was not compiled here."""

    @property
    def has_openmp(self) -> bool:
        said = [flag for flag in self.flags if flag in (OPENMP, "-fno-openmp")]
        return said[-1:] == [OPENMP]

    @property
    def processor(self) -> str | None:
        """The one that its last flag for it names; `native` is this very one. None: any of the architecture."""
        named = [flag.partition("=")[2] for flag in self.flags if flag.startswith(("-march=", "-mcpu="))]
        return named[-1] if named else None

    @property
    def cost(self) -> str | None:
        """Why the library is slower than it could be, and what would help. None: it is not."""
        if self.is_shipped:
            return "our kernels came with the package, for any processor of their level; install g++ for quicker ones"
        if self.processor not in (None, "native"):
            return (
                f"our kernels are built for {self.processor}, as CXXFLAGS say, and not for this very processor: take "
                "that out of CXXFLAGS for quicker ones; conda sets it with its compilers, and `CXXFLAGS= ludus …` "
                "leaves it out"
            )
        if not self.has_openmp and sys.platform != "darwin":
            return (
                f"{self.compiler} has no OpenMP, so our kernels share work among threads that sleep in between, which "
                "takes longer for small pieces; install g++, or clang's libomp, or set CXX to a compiler that has it"
            )
        if self.processor is None:
            return f"{self.compiler} cannot build for this very processor; install g++, or set CXX to another compiler"
        return None


def build_library(name: str, cache: Path | None = None) -> Path:
    """Path of the library compiled from `name`.cpp; compiles it if it is not in the cache yet.

    If it cannot be compiled, this is the library that came with the package, and a warning says so.

    cache: folder in which it is stored. None: the user's cache.
    Raises BackendError if none came with the package and there is no compiler, it fails (with its own message), or
    other users can write to the cache.
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
        raise BackendError(
            f"cannot keep the compiled {source.name} in {folder}: {error}; set XDG_CACHE_HOME to a folder that you can "
            "write to"
        ) from error
    build = build_of(library)
    if build.cost is not None:
        _warn(build.cost)
    if not build.has_openmp and name != POOL:  # compile the pool too; if that fails, loading the library says why
        obtain(lambda: _compiled(POOL, cache))
    return library


def build_of(library: Path) -> Build:
    """How a library returned by `build_library` was compiled."""
    values = json.loads(record_of(library).read_text())
    return Build(values["compiler"], tuple(values["flags"]), values.get("is_shipped", False))


def record_of(library: Path) -> Path:
    """Path of the file that records how a library was compiled."""
    return library.with_suffix(".json")


def _check_own(path: Path) -> None:
    """Raises BackendError if another user could have written the file, which would be loaded into this process."""
    state = path.stat()
    if state.st_uid in (os.geteuid(), 0) and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    raise BackendError(
        f"{path} belongs to user {state.st_uid} with mode {stat.S_IMODE(state.st_mode):o}: others could have written "
        "what would be loaded from it; remove it, or set XDG_CACHE_HOME to a folder of your own"
    )


@cache
def _warn(cost: str) -> None:
    """Log a warning, once in a process for all libraries."""
    logger.warning("%s", cost)


def obtain(make: Callable[[], T], unsupported_reason: str | None = None) -> T | str:
    """What `make` returns, or why it cannot: `unsupported_reason`, or the error of building or opening its library."""
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
    """Names, without suffix, of the C++ sources with kernels: all in this folder except the thread pool."""
    return sorted(source.stem for source in _FOLDER.glob("*.cpp") if source.stem != POOL)


def find_compiler() -> Compiler:
    """The compiler of CXX and CXXFLAGS, as for make; else the first C++ compiler on the path."""
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
    compiler: Compiler, source: Path, library: Path, variants: Sequence[tuple[str, ...]] | None = None
) -> None:
    """Write `library`, and beside it a record of how it was made, with the first set of flags that `compiler` accepts.

    variants: sets of flags to try in turn. None: all that there are for this system.
    Compiles to a temporary file, then renames it, so that concurrent processes see a complete library or none.
    """
    with tempfile.TemporaryDirectory(dir=library.parent, ignore_cleanup_errors=True) as scratch:
        built = Path(scratch) / library.name
        complaint = ""
        for variant in variants or _variants():
            command = [*compiler.command, *FLAGS, *variant, *compiler.flags, "-o", str(built), str(source)]
            try:
                done = _run(command)
            except subprocess.TimeoutExpired as error:
                raise BackendError(f"{compiler} took more than {_TIMEOUT_S} s for {source.name}") from error
            if done.returncode == 0:
                record = record_of(built)
                record.write_text(json.dumps({"compiler": str(compiler), "flags": [*variant, *compiler.flags]}))
                built.chmod(built.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
                for path in (record, built):
                    sync(path)  # a crash of the machine must not leave an empty library under its name
                    path.replace(library.with_name(path.name))
                return
            complaint = done.stderr.strip()[:400]  # in the end of the variant that asks for nothing in particular
    raise BackendError(f"{compiler} could not compile {source.name}: {complaint}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)


def _variants() -> Sequence[tuple[str, ...]]:
    return _VARIANTS_ON_MAC if sys.platform == "darwin" else _VARIANTS


def _key(compiler: Compiler, source: Path) -> str:
    texts = [path.read_bytes() for path in (source, *sorted(_FOLDER.glob("*.h")))]
    how = (version_of(compiler), repr((FLAGS, _variants(), compiler)), _processor())
    return hashlib.sha256(b"\0".join([*texts, *(each.encode() for each in how)])).hexdigest()[:24]


@lru_cache
def version_of(compiler: Compiler) -> str:
    """The compiler's output for --version. Raises BackendError if it cannot be run."""
    try:
        done = _run([*compiler.command, "--version"])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{compiler} does not run: {error}; set CXX to another compiler") from error
    return done.stdout


@lru_cache
def _processor() -> str:
    """A description of the processor that determines the instructions used by `-march=native`."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return f"{platform.machine()} {Machine.look(seconds=0).processor}"
    chosen = ("model name", "flags", "Features", "CPU part")
    lines = facts.read_text().split("\n\n")[0].splitlines()
    return platform.machine() + "\n".join(line for line in lines if line.startswith(chosen))


def main() -> None:
    """Compile ahead of first use. Failures are only reported, as Ludus also runs without compiled kernels."""
    for name in source_names():
        try:
            sys.stdout.write(f"native {name}: {build_library(name)}\n")
        except BackendError as error:
            sys.stdout.write(f"no native {name}, everything will take about twice as long: {error}\n")


if __name__ == "__main__":
    main()
