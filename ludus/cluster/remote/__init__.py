"""A server of training started where the accelerator is, for a client that is elsewhere."""

from ludus.cluster.remote.server import LaunchedServer, OnLine
from ludus.cluster.remote.server_address import announcement
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.targets import target_of

__all__ = ["LaunchSettings", "LaunchedServer", "OnLine", "announcement", "target_of"]
