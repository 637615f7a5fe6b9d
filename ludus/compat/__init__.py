"""Guests: each family's names, its own kinds of agent, its keys, its importers. The core knows none of them."""

from ludus.compat.names import install as _install
from ludus.compat.originals.path import put_on_path as _put_on_path

__all__ = ["load_ipython_extension"]


def load_ipython_extension(_: object) -> None:
    """`%load_ext ludus.compat`: the cells of a notebook import the originals' names, and get ours."""
    _put_on_path()


_install()
