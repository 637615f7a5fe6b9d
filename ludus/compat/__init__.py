"""Guests: each family's names, its own kinds of agent, its keys, its importers. The core knows none of them."""

from ludus.compat.names import install as _install
from ludus.compat.originals.extension import load_ipython_extension

__all__ = ["load_ipython_extension"]

_install()
