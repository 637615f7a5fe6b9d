"""One conversation recorded exactly: token graph, recorder, ledger, and export to training sequences."""

from ludus.episodes.completion import FinishReason, OnDelta, OnStart, finish_reason
from ludus.episodes.conversation import Match
from ludus.episodes.export import Exported, ExportStyle, TurnCredit, count_trained, export_session
from ludus.episodes.graph import GraphStats, SessionGraph
from ludus.episodes.ledger import Ledger, MaskReason
from ludus.episodes.limits import Limits
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.sink import TurnSink
from ludus.episodes.stats import ForkExample, SessionStats

__all__ = [
    "ExportStyle",
    "Exported",
    "FinishReason",
    "ForkExample",
    "GraphStats",
    "Ledger",
    "Limits",
    "MaskReason",
    "Match",
    "OnDelta",
    "OnStart",
    "Session",
    "Recorder",
    "SessionGraph",
    "SessionStats",
    "TurnCredit",
    "TurnSink",
    "count_trained",
    "export_session",
    "finish_reason",
]
