"""An environment that holds what `pip install ludus openai` would install, and nothing else: no torch, no numpy.

Made of links to what is installed here, so that it takes no network and no time.
"""

from __future__ import annotations

import importlib.metadata
import re
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
ALSO = ("openai",)  # a model's own client; the SDK is the user's


def base_environment(folder: Path) -> Path:
    """The Python of a new environment in `folder`."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for package in ("ludus", "ludus_vllm"):
        (packages / package).symlink_to(ROOT / package)
    for name in sorted(set(_closure([*_own_requirements(), *ALSO]))):
        _link(importlib.metadata.distribution(name), packages)
    return folder / "bin" / "python"


def _own_requirements() -> list[str]:
    """The base install's, as pyproject.toml has them."""
    text = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    return re.findall(r'^\s+"([^"]+)"', text, flags=re.MULTILINE)


def _closure(requirements: list[str]) -> Iterator[str]:
    """Names of these distributions and of all that they need, extras left out."""
    waiting, seen = list(requirements), set[str]()
    while waiting:
        requirement = waiting.pop()
        name = re.split(r"[\s<>=!~;\[(]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")
        if name in seen or "extra ==" in requirement:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a marker excludes it on this platform
        yield name
        waiting += found.requires or []


def _link(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        source, target = Path(str(distribution.locate_file(top))), packages / top
        if source.exists() and not target.exists():
            target.symlink_to(source)
