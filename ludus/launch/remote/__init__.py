"""A server of training started where the accelerator is, for a client that is elsewhere."""

from ludus.launch.remote.server import LaunchedServer, OnLine
from ludus.launch.remote.settings import LaunchSettings
from ludus.launch.remote.spot import announcement
from ludus.launch.remote.where import place_of

__all__ = ["LaunchSettings", "LaunchedServer", "OnLine", "announcement", "place_of"]
