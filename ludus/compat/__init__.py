"""Guests: each family's names, its own kinds of agent, its keys, its importers. The core knows none of them."""
