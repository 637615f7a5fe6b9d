"""The names of `areal`: `ludus.compat.areal…` in the place of `areal…`, as its `names.toml` says."""

from ludus.compat.names import furnish as _furnish

_furnish(__name__)
