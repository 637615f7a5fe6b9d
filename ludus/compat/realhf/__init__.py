"""The names of `realhf`: `ludus.compat.realhf…` in the place of `realhf…`, as its `names.toml` says."""

from ludus.compat.names import furnish as _furnish

_furnish(__name__)
