"""Compiles a C++ source of this folder for this machine's processor, once per source, compiler and processor.

Knows: compilers, the user's cache folder.  Knows not: torch.
`python -m ludus.kernels.build` compiles all ahead of first use and says where the libraries are, or why they are not.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ludus.errors import BackendError
from ludus.processes.files import user_cache

T = TypeVar("T")

_FOLDER = Path(__file__).parent
_COMPILERS = ("g++", "c++", "clang++")
# No -ffast-math: it would make every thread of the process flush denormals as soon as the library is loaded.
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
# Tried in turn: some compilers lack OpenMP, some a name for their own processor.
_VARIANTS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-fopenmp",), ())
# A compilation takes two seconds; far beyond that something hangs.
_TIMEOUT_S = 120


def build_library(name: str, cache: Path | None = None) -> Path:
    """Path of the library compiled from `name`.cpp; compiles it if it is not in the cache yet.

    cache: folder to keep it in. None: the user's.
    Raises BackendError if there is no compiler, or if it fails; the message is its own.
    """
    source = source_path(name)
    compiler = find_compiler()
    folder = (cache or user_cache() / "native") / _key(compiler, source)
    library = folder / f"{name}.so"
    if not library.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            compile_source(compiler, source, library)
        except OSError as error:
            raise BackendError(f"cannot keep the compiled {source.name} in {folder}: {error}") from error
    return library


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
    """What can be built: every C++ source of this folder, without its ending."""
    return sorted(source.stem for source in _FOLDER.glob("*.cpp"))


def find_compiler() -> str:
    """The first C++ compiler on the path."""
    for name in _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise BackendError(f"no C++ compiler found; any of {', '.join(_COMPILERS)} would do")


def compile_source(compiler: str, source: Path, library: Path, variants: Sequence[tuple[str, ...]] = _VARIANTS) -> None:
    """Writes `library` with the first set of flags that `compiler` takes.

    It compiles beside the target, then renames: whoever compiles at the same time sees all of it or nothing.
    """
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        complaint = ""
        for variant in variants:
            command = [compiler, *_FLAGS, *variant, "-o", str(built), str(source)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise BackendError(f"{compiler} took more than {_TIMEOUT_S} s for {source.name}") from error
            if done.returncode == 0:
                built.replace(library)
                return
            complaint = complaint or done.stderr.strip()[:400]
    raise BackendError(f"{compiler} could not compile {source.name}: {complaint}")


def _key(compiler: str, source: Path) -> str:
    headers = [header.read_text() for header in sorted(_FOLDER.glob("*.h"))]
    version = _version(compiler)
    parts = (source.read_text(), *headers, compiler, version, repr((_FLAGS, _VARIANTS)), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@lru_cache
def _version(compiler: str) -> str:
    """What the compiler says of itself."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
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
