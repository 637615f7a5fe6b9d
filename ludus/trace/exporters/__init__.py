"""Finished episodes in other people's viewers."""

from ludus.trace.exporters.base import Exporter, Finished, NoExporter
from ludus.trace.exporters.select import open_exporter

__all__ = ["Exporter", "Finished", "NoExporter", "open_exporter"]
