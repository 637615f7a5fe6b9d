"""Ludus's modules under the originals' names: `art.utils` is the same module object as `ludus.compat.art.utils`.

Knows: import machinery.  Knows not: tables, paths.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from ludus.compat.names import HERE

MAIN = "__main__"


class StandIns(MetaPathFinder, Loader):
    """Finds the modules of families that stand in. Comes before all other finders, which would load files a second
    time."""

    def __init__(self) -> None:
        self._families: set[str] = set()

    def add(self, family: str) -> None:
        self._families.add(family)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None: not below a family that stands in."""
        family, _, below = fullname.partition(".")
        if not below or family not in self._families:
            return None
        # All modules are packages, so `python -m` runs their `__main__`.
        return ModuleSpec(fullname, self, is_package=below.rpartition(".")[2] != MAIN)

    def get_code(self, fullname: str) -> CodeType:
        """The code that `python -m` runs: a call of the module's function `main`."""
        module = fullname.removesuffix(f".{MAIN}")
        return compile(f"from {HERE}.{module} import main\nmain()\n", f"<{module}>", "exec")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Raises ModuleNotFoundError for modules that only the original has; the message lists what there is."""
        module = importlib.import_module(f"{HERE}.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # the module exists already under Ludus's name, and keeps its spec
        assert module.__spec__ is not None, "the machinery has just set it"
        module.__spec__ = module.__spec__.loader_state


def stand_in(family: str) -> None:
    """Make `import family` Ludus's package; called by the module of that name while it is imported."""
    finder = next((each for each in sys.meta_path if isinstance(each, StandIns)), None)
    if finder is None:
        finder = StandIns()
        sys.meta_path.insert(0, finder)
    finder.add(family)
    sys.modules[family] = importlib.import_module(f"{HERE}.{family}")
