"""An engine of ours behind a URL: what it is asked in, and how new weights come in."""

from ludus.engines.serving.app import EngineApi
from ludus.engines.serving.inbox import Inbox, LoadWeights

__all__ = ["EngineApi", "Inbox", "LoadWeights"]
