"""The doors: how a user's agent is found, called, and how what it returns becomes rewards."""

from ludus.agents.adapter import About, Door, EpisodeContext, current_episode
from ludus.agents.kinds import resolve_workflow
from ludus.agents.thread import AgentThread
from ludus.episodes.reward import Result
from ludus.gateway.in_process import InProcessGateway, SessionClient
from ludus.gateway.interactions import Interaction

__all__ = [
    "About",
    "AgentThread",
    "Door",
    "EpisodeContext",
    "InProcessGateway",
    "Interaction",
    "Result",
    "SessionClient",
    "current_episode",
    "resolve_workflow",
]
