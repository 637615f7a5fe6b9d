"""As in `verl.tools.base_tool`."""

from ludus.agents.tools import BaseTool

__all__ = ["BaseTool"]
