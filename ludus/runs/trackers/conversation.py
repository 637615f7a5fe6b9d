"""Lists the messages of an episode in order, for trackers that show text or tables but no traces.

Knows: episodes.  Knows not: trackers.
"""

from __future__ import annotations

from ludus.runs.trackers.tree import cut
from ludus.runs.view import message_text, new_messages
from ludus.types import Episode


def conversation(episode: Episode) -> tuple[tuple[str, str], ...]:
    """Speaker and text of each message: for each turn its new messages, then its reply."""
    by_id = {turn.id: turn for turn in episode.session.turns}
    found: list[tuple[str, str]] = []
    for turn in episode.session.turns:
        told = new_messages(turn, by_id.get(turn.follows or ""))
        found += [(message.role, message_text(message)) for message in told]
        found.append((f"{turn.reply.role} ({turn.agent})" if turn.agent else turn.reply.role, message_text(turn.reply)))
    return tuple((who, cut(text)) for who, text in found)
