"""One life of an episode: sessions opened, recorded exactly, rewarded and ended, and what they become in training."""

from ludus.episodes.archive import Archive, ExportArchive, MemoryArchive, RunArchive
from ludus.episodes.completion import OnDelta, OnStart
from ludus.episodes.conversation import Match
from ludus.episodes.episodes import Episodes
from ludus.episodes.export import Exported, ExportStyle, TurnCredit, count_trained, export_session
from ludus.episodes.graph import GraphStats, SessionGraph
from ludus.episodes.handle import Handle, SessionSpec
from ludus.episodes.keys import SessionKeys
from ludus.episodes.ledger import Ledger, MaskReason
from ludus.episodes.limits import Limits
from ludus.episodes.recorder import Recorder
from ludus.episodes.reward import Result, RewardSheet
from ludus.episodes.session import Session, TurnSink
from ludus.episodes.stats import ForkExample, SessionStats

__all__ = [
    "Archive",
    "Episodes",
    "ExportArchive",
    "ExportStyle",
    "Exported",
    "ForkExample",
    "GraphStats",
    "Handle",
    "Ledger",
    "Limits",
    "MaskReason",
    "Match",
    "MemoryArchive",
    "OnDelta",
    "OnStart",
    "Recorder",
    "Result",
    "RewardSheet",
    "RunArchive",
    "Session",
    "SessionGraph",
    "SessionKeys",
    "SessionSpec",
    "SessionStats",
    "TurnCredit",
    "TurnSink",
    "count_trained",
    "export_session",
]
