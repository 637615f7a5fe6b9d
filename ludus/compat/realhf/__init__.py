"""The names of `realhf`, importable as `ludus.compat.realhf…` instead of `realhf…`; `names.toml` lists them."""

from ludus.compat.names import furnish as _furnish
from ludus.compat.originals.extension import extension as _extension

load_ipython_extension = _extension(__name__)
_furnish(__name__)
