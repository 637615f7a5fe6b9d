"""The names of `verl`: `ludus.compat.verl…` in the place of `verl…`, as its `names.toml` says."""

from ludus.compat.names import furnish as _furnish
from ludus.compat.originals.extension import extension as _extension

load_ipython_extension = _extension(__name__)
_furnish(__name__)
