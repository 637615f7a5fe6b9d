"""The command line: `ludus train`, `rollout`, `eval`, `report`, `models`, `verify`, `gateway`."""

from ludus.cli.app import main

__all__ = ["main"]
