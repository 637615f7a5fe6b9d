"""The wheel and the source archive of a commit, the same bytes whoever builds them and where: `make release`.

Knows: git, setuptools, archives.  Knows not: who gets them.
What is built is what the commit holds, not what lies in the folder. Every time in the archives is the commit's; order,
owners and modes are fixed. setuptools is the one that constraints.txt pins; another zlib may compress otherwise.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent
_EXECUTABLE, _PLAIN = 0o755, 0o644


def build(repository: Path, commit: str, out: Path) -> list[Path]:
    """The wheel and the source archive of `commit`, in `out`."""
    told = ["git", "-C", str(repository), "log", "-1", "--format=%ct", commit]
    time = int(subprocess.run(told, capture_output=True, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory(prefix="ludus-release-") as scratch:
        tree, built = Path(scratch) / "tree", Path(scratch) / "built"
        archive = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(tree, filter="data")
        code = f"from setuptools import build_meta as b; b.build_sdist({str(built)!r}); b.build_wheel({str(built)!r})"
        built.mkdir()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SETUPTOOLS"))},
            "SOURCE_DATE_EPOCH": str(time),
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tree, env=environment, umask=0o022, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"setuptools could not build {commit}:\n{done.stderr}")
        out.mkdir(parents=True, exist_ok=True)
        made = []
        for path in sorted(built.iterdir()):
            made.append(out / path.name)
            if path.name.endswith(".tar.gz"):
                _tidy(path, made[-1], time)
            else:
                shutil.copyfile(path, made[-1])
        return made


def _tidy(archive: Path, to: Path, time: int) -> None:
    """The same files in order, each of nobody's and of the commit's time; setuptools keeps those of the machine."""
    with (
        tarfile.open(archive) as files,
        to.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tidy,
    ):
        for member in sorted(files.getmembers(), key=lambda each: each.name):
            mode = _EXECUTABLE if member.isdir() or member.mode & 0o100 else _PLAIN
            plain = member.replace(mtime=time, mode=mode, uid=0, gid=0, uname="", gname="", deep=False)
            plain.pax_headers = {}
            tidy.addfile(plain, files.extractfile(member) if member.isfile() else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="the folder that they are written into")
    parser.add_argument("--commit", default="HEAD", help="what is built (default: %(default)s)")
    options = parser.parse_args()
    for path in build(ROOT, options.commit, options.out):
        sys.stdout.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}\n")


if __name__ == "__main__":
    main()
