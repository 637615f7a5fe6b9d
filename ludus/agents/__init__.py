"""The doors: how a user's agent is found, called, and how what it returns becomes rewards."""

from ludus.agents.client import InProcessGateway, SessionClient
from ludus.agents.door import About, Door, EpisodeContext, current_episode
from ludus.agents.interactions import Interaction
from ludus.agents.resolve import resolve_workflow
from ludus.agents.reward import Result, Scored, score_episode
from ludus.agents.thread import AgentThread

__all__ = [
    "About",
    "AgentThread",
    "Door",
    "EpisodeContext",
    "InProcessGateway",
    "Interaction",
    "Result",
    "Scored",
    "SessionClient",
    "current_episode",
    "resolve_workflow",
    "score_episode",
]
