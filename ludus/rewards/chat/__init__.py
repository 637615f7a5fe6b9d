"""Frozen chat models that are asked and never trained: judges, writers of scenarios."""

from ludus.rewards.chat.base import ChatAnswer, ChatModel, Usage
from ludus.rewards.chat.http import HttpChatModel, Price
from ludus.rewards.chat.resolve import resolve_chat_model
from ludus.rewards.chat.scripted import ScriptedChatModel

__all__ = [
    "ChatAnswer",
    "ChatModel",
    "HttpChatModel",
    "Price",
    "ScriptedChatModel",
    "Usage",
    "resolve_chat_model",
]
