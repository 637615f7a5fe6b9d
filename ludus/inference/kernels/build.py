"""Compiles attention.cpp for this machine's processor, once per source, compiler and processor.

Knows: compilers, the user's cache folder.  Knows not: torch.
`python -m ludus.inference.kernels.build` compiles ahead of first use and says where the library is, or why it is not.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ludus.errors import BackendError

SOURCE = Path(__file__).with_name("attention.cpp")
_COMPILERS = ("g++", "c++", "clang++")
# No -ffast-math: it would make every thread of the process flush denormals as soon as the library is loaded.
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
# Tried in turn: some compilers lack OpenMP, some a name for their own processor.
_VARIANTS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-fopenmp",), ())
# A compilation takes two seconds; far beyond that something hangs.
_TIMEOUT_S = 120


def build_library(cache: Path | None = None) -> Path:
    """Path of the compiled library; compiles it if it is not in the cache yet.

    cache: folder to keep it in. None: the user's.
    Raises BackendError if there is no compiler, or if it fails; the message is its own.
    """
    compiler = find_compiler()
    folder = (cache or default_cache()) / _key(compiler)
    library = folder / "attention.so"
    if not library.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            compile_kernel(compiler, library)
        except OSError as error:
            raise BackendError(f"cannot keep the compiled kernel in {folder}: {error}") from error
    return library


def default_cache() -> Path:
    """Where compiled kernels lie: `ludus/kernels` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ludus" / "kernels"


def find_compiler() -> str:
    """The first C++ compiler on the path."""
    for name in _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise BackendError(f"no C++ compiler found; any of {', '.join(_COMPILERS)} would do")


def compile_kernel(compiler: str, library: Path, variants: Sequence[tuple[str, ...]] = _VARIANTS) -> None:
    """Writes `library` with the first set of flags that `compiler` takes.

    It compiles beside the target, then renames: whoever compiles at the same time sees all of it or nothing.
    """
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        complaint = ""
        for variant in variants:
            command = [compiler, *_FLAGS, *variant, "-o", str(built), str(SOURCE)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise BackendError(f"{compiler} took more than {_TIMEOUT_S} s for {SOURCE.name}") from error
            if done.returncode == 0:
                built.replace(library)
                return
            complaint = complaint or done.stderr.strip()[:400]
    raise BackendError(f"{compiler} could not compile {SOURCE.name}: {complaint}")


def _key(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    parts = (SOURCE.read_text(), compiler, version.stdout, repr((_FLAGS, _VARIANTS)), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _processor() -> str:
    """What decides on the instructions that `-march=native` uses."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return f"{platform.machine()} {platform.processor()}"
    chosen = ("model name", "flags", "Features", "CPU part")
    lines = facts.read_text().split("\n\n")[0].splitlines()
    return platform.machine() + "\n".join(line for line in lines if line.startswith(chosen))


def main() -> None:
    """Compile ahead of first use. A machine that cannot is served too, so this tells it and does not fail."""
    try:
        sys.stdout.write(f"native attention kernel: {build_library()}\n")
    except BackendError as error:
        sys.stdout.write(f"no native attention kernel, sampling will be about half as fast: {error}\n")


if __name__ == "__main__":
    main()
