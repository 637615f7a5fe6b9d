"""IPython extensions that make the originals' names Ludus's in a notebook, and a notice if an original is imported.

Knows: import machinery, `%load_ext`.  Knows not: tables, command lines.
Invariant: an original that is imported although Ludus could stand in is reported once, whatever imports it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from ludus.compat.names import FAMILIES, HERE
from ludus.compat.originals.path import original, put_on_path
from ludus.errors import UserError

Say = Callable[[str], object]


class Originals(MetaPathFinder):
    """A finder that finds nothing, but reports, once for each family, that its original is imported."""

    def __init__(self, say: Say, instead: str) -> None:
        """instead: how to get Ludus's names nevertheless; contains `{family}`."""
        self._say, self._instead = say, instead
        self._asked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in FAMILIES and fullname not in self._asked:
            self._asked.add(fullname)  # first, because looking for the original calls this finder again
            self.tell(fullname)
        return None

    def tell(self, family: str) -> None:
        """Report the original, if it is installed."""
        if (place := original(family)) is not None:
            instead = self._instead.format(family=family)
            self._say(f"{family!r} is installed here ({place}) and is what is imported; Ludus's instead: {instead}")


def name_originals(say: Say, instead: str) -> None:
    """Report originals from now on, replacing an earlier call; those already imported are reported now."""
    finder = Originals(say, instead)
    sys.meta_path[:] = [finder, *(each for each in sys.meta_path if not isinstance(each, Originals))]
    for family in (each for each in FAMILIES if each in sys.modules):
        finder.tell(family)


def load_ipython_extension(_: object) -> None:
    """`%load_ext ludus.compat`: a notebook's imports of the originals' names get Ludus's, unless the original is
    installed."""
    put_on_path(_standing_in())
    name_originals(print, f"%load_ext {HERE}.{{family}}, in a kernel that has not imported it")


def extension(module: str) -> Callable[[object], None]:
    """The extension `%load_ext ludus.compat.art`: the family's names are Ludus's even if the original is installed."""
    family = module.removeprefix(f"{HERE}.")

    def load_ipython_extension(_: object) -> None:
        """Raises UserError if the original was imported before."""
        if family in sys.modules and (place := original(family)) is not None:
            raise UserError(
                f"{family!r} is imported already, and is the original ({place}): restart the kernel, and load "
                f"{module} first"
            )
        put_on_path({*_standing_in(), family})
        importlib.import_module(family)

    return load_ipython_extension


def _standing_in() -> list[str]:
    """Families whose names are Ludus's in this process."""
    return [family for family in FAMILIES if family in sys.modules and original(family) is None]
