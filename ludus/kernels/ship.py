"""Compiles every source for every level of an architecture, for inclusion in a wheel.

Knows: the compiler that CXX names, its architecture.  Knows not: wheels.
`python -m ludus.kernels.ship FOLDER` writes FOLDER/LEVEL/NAME.so and prints the wheel's platform tag, with the oldest
glibc that has all symbols they need. OpenMP is not linked: they use torch's, which is loaded before them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ludus.errors import BackendError
from ludus.kernels.build import FLAGS, OPENMP, Compiler, find_compiler, record_of, source_names, source_path
from ludus.kernels.levels import LEVELS, Level

_OLDEST_GLIBC = 17
"""Minor version of glibc 2.17, the oldest that wheels are tagged for."""
_GLIBC_OF_CXX = {28: 31, 29: 34, 30: 35}
"""Minor version of the glibc on systems that have GLIBCXX_3.4.N, by N. Source: auditwheel's policies."""


def ship(folder: Path, compiler: Compiler) -> str:
    """Compile into `folder`; returns the platform tag. Raises BackendError if the compiler fails."""
    architecture = _run(compiler, "-dumpmachine").partition("-")[0]
    levels = [level for level in LEVELS if level.architecture == architecture]
    if not levels:
        known = ", ".join(dict.fromkeys(level.architecture for level in LEVELS))
        raise BackendError(f"{compiler} compiles for {architecture}, and there are levels for {known} alone")
    newest = _OLDEST_GLIBC
    for level in levels:
        (folder / level.name).mkdir(parents=True, exist_ok=True)
        for name in source_names():
            library = folder / level.name / f"{name}.so"
            _compile(compiler, level, source_path(name), library)
            newest = max(newest, _newest_glibc(library.read_bytes()))
    return f"manylinux_2_{newest}_{architecture}"


def _newest_glibc(library: bytes) -> int:
    """Minor version of the oldest glibc with all symbols that the library needs of it and of libstdc++."""
    asked = [int(number) for number in re.findall(rb"GLIBC_2\.(\d+)", library)]
    cxx = [int(number) for number in re.findall(rb"GLIBCXX_3\.4\.(\d+)", library)]
    return max([*asked, *(_GLIBC_OF_CXX.get(number, _OLDEST_GLIBC) for number in cxx)], default=_OLDEST_GLIBC)


def _compile(compiler: Compiler, level: Level, source: Path, library: Path) -> None:
    flags = (f"-march={level.march}", OPENMP)
    with tempfile.TemporaryDirectory() as scratch:
        compiled = str(Path(scratch) / "compiled.o")
        _run(compiler, *FLAGS, *flags, *compiler.flags, "-c", "-o", compiled, str(source))
        # Linked without -fopenmp, which would require libgomp: a machine without a compiler may not have it.
        _run(compiler, "-shared", "-s", "-o", str(library), compiled)
    made = {"compiler": Path(compiler.command[0]).name, "flags": flags, "is_shipped": True}
    record_of(library).write_text(json.dumps(made))


def _run(compiler: Compiler, *arguments: str) -> str:
    done = subprocess.run([*compiler.command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{compiler} {' '.join(arguments)}: {done.stderr.strip()[:400]}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.stdout.write(ship(Path(sys.argv[1]), find_compiler()) + "\n")
