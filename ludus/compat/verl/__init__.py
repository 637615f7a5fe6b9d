"""The names of `verl`: `ludus.compat.verl…` in the place of `verl…`, as its `names.toml` says."""

from ludus.compat.names import furnish as _furnish

_furnish(__name__)
