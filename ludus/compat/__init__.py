"""Guests: each family's names, its own kinds of agent, its keys, its importers. The core knows none of them."""

from ludus.compat.names import install as _install

__all__: list[str] = []

_install()

# The two still know each other: whoever comes first must be the core.
import ludus.agents as _agents  # noqa: E402, F401
