"""Starts a training server on a machine with an accelerator, for a client on another machine."""

from ludus.cluster.remote.server import LaunchedServer, OnLine
from ludus.cluster.remote.server_address import announcement
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.targets import target_of

__all__ = ["LaunchSettings", "LaunchedServer", "OnLine", "announcement", "target_of"]
