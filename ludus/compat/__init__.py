"""Guests: each family's names, its own kinds of agent, its keys, its importers. The core knows none of them."""

from ludus.compat.names import install as _install

__all__: list[str] = []

_install()
