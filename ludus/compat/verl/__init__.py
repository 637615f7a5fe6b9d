"""The names of `verl`: `ludus.compat.verl…` in the place of `verl…`, as its `names.py` says."""

from ludus.compat.names import furnish as _furnish

_furnish(__name__)
