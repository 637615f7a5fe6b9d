"""The token graph of an episode, its ledger, and its export to training sequences."""

from ludus.session.conversation import Match
from ludus.session.export import Exported, ExportStyle, TurnCredit, count_trained, export_session
from ludus.session.graph import GraphStats, SessionGraph
from ludus.session.ledger import Ledger, MaskReason

__all__ = [
    "ExportStyle",
    "Exported",
    "GraphStats",
    "Ledger",
    "MaskReason",
    "Match",
    "SessionGraph",
    "TurnCredit",
    "count_trained",
    "export_session",
]
