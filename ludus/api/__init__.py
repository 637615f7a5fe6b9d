"""The public API: what users call. It composes the layers below and decides nothing itself."""

from ludus.api.gateway import open_gateway
from ludus.api.play import play
from ludus.api.rows import load_rows
from ludus.api.supervised import train_preferences, train_supervised
from ludus.api.trainer import Trainer

__all__ = ["Trainer", "load_rows", "open_gateway", "play", "train_preferences", "train_supervised"]
