"""The names of `areal`: `ludus.compat.areal…` in the place of `areal…`, as its `names.py` says."""

from ludus.compat.names import furnish as _furnish

_furnish(__name__)
