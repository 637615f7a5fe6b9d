"""Support for other families' programs: their names, kinds of agents, keys and importers. The core knows none of it."""

from ludus.compat.names import install as _install
from ludus.compat.originals.extension import load_ipython_extension

__all__ = ["load_ipython_extension"]

_install()
