"""Whose names a script or a notebook gets: extensions of IPython that say it, and word of an original that is there.

Knows: import machinery, what `%load_ext` calls.  Knows not: tables, command lines.
Invariant: an original that is imported where ours could be is named, once, whatever imports it.
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
    """Finds nothing; says of each family that is imported, once, that the original is what is found."""

    def __init__(self, say: Say, instead: str) -> None:
        """instead: with `{family}`, what means ours all the same."""
        self._say, self._instead = say, instead
        self._asked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in FAMILIES and fullname not in self._asked:
            self._asked.add(fullname)  # first: looking for the original asks us again
            self.tell(fullname)
        return None

    def tell(self, family: str) -> None:
        """Nothing where the original is not there."""
        if (place := original(family)) is not None:
            instead = self._instead.format(family=family)
            self._say(f"{family!r} is installed here ({place}) and is what is imported; Ludus's instead: {instead}")


def name_originals(say: Say, instead: str) -> None:
    """From now on, in the place of what was said here before; of those that were imported already, now."""
    finder = Originals(say, instead)
    sys.meta_path[:] = [finder, *(each for each in sys.meta_path if not isinstance(each, Originals))]
    for family in (each for each in FAMILIES if each in sys.modules):
        finder.tell(family)


def load_ipython_extension(_: object) -> None:
    """`%load_ext ludus.compat`: the cells of a notebook import the originals' names, and get ours where the originals
    are not installed."""
    put_on_path(_standing_in())
    name_originals(print, f"%load_ext {HERE}.{{family}}, in a kernel that has not imported it")


def extension(module: str) -> Callable[[object], None]:
    """Of `%load_ext ludus.compat.art`: that family is ours, where the original is installed too."""
    family = module.removeprefix(f"{HERE}.")

    def load_ipython_extension(_: object) -> None:
        """Raises UserError where the original was imported before."""
        if family in sys.modules and (place := original(family)) is not None:
            raise UserError(
                f"{family!r} is imported already, and is the original ({place}): restart the kernel, and load "
                f"{module} first"
            )
        put_on_path({*_standing_in(), family})
        importlib.import_module(family)

    return load_ipython_extension


def _standing_in() -> list[str]:
    """Families that are ours in this process."""
    return [family for family in FAMILIES if family in sys.modules and original(family) is None]
