"""Engines behind a URL: one client of them all, and the words of each kind of server."""

from ludus.engines.http.base import Piece, Wire
from ludus.engines.http.client import HttpEngine

__all__ = ["HttpEngine", "Piece", "Wire"]
