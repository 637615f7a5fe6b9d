"""As in `verl.tools.gsm8k_tool`."""

from ludus.agents.tools import Gsm8kTool

__all__ = ["Gsm8kTool"]
