"""Libraries that are preloaded into processes, so that these see another clock or another machine than there is.

Knows: the C++ compiler, LD_PRELOAD.  Knows not: what the processes do.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ludus.errors import BackendError

MKL_THREADS = "MKL_NUM_THREADS"
"""Says what MKL would count, which asks the processor itself (and with MKL_DYNAMIC believes nothing else); torch begins
with as many threads."""
_PERIOD_US = 100_000
"""Of a quota; the default of Linux."""


def compile_preloaded(source: Path, folder: Path) -> Path:
    """The library of a C++ source, in `folder`. Raises BackendError if it cannot be compiled."""
    library = folder / f"{source.stem}.so"
    compiler = shutil.which("c++") or shutil.which("g++") or "c++"
    # _FORTIFY_SOURCE, a default of some compilers, would define functions of its own in their place
    command = [compiler, "-O1", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BackendError(f"{source.name}, which is preloaded, could not be compiled: {error}") from error
    return library


@contextmanager
def shown_cores(cores: int, quota: float) -> Iterator[Mapping[str, str]]:
    """Variables with which a process, and all that it starts, sees `cores` cores of which its control group allows
    `quota`, until the block ends.

    Nothing is limited by it. Raises BackendError if the library cannot be compiled.
    """
    with tempfile.TemporaryDirectory(prefix="ludus-cores-") as name:
        folder = Path(name)
        group = folder / "sys/fs/cgroup"
        group.mkdir(parents=True)
        (group / "cpu.max").write_text(f"{round(quota * _PERIOD_US)} {_PERIOD_US}\n")
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/self/cgroup").write_text("0::/\n")
        library = compile_preloaded(Path(__file__).with_name("shown_cores.cpp"), folder)
        shown = {"LD_PRELOAD": str(library), "LUDUS_SHOWN_CORES": str(cores), "LUDUS_SHOWN_ROOT": name}
        yield {**shown, MKL_THREADS: str(cores), "MKL_DYNAMIC": "FALSE"}
