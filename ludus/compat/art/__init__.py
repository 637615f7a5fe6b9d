"""The names of `art`: `ludus.compat.art…` for `art…`, as its `names.toml` says."""

from ludus.compat.names import furnish as _furnish

_furnish(__name__)
