"""Engines sample tokens: the protocol every engine keeps, and the scripted one for tests and docs.

Our own engine stands in `ludus.engines.local.engine`, which imports torch.
"""

from ludus.engines.base import Engine, OnTokens, WeightSource
from ludus.engines.scripted import ScriptedEngine

__all__ = ["Engine", "OnTokens", "ScriptedEngine", "WeightSource"]
