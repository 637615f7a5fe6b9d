"""Finished episodes in other people's viewers."""

from ludus.runs.exporters.base import Exporter, Finished, NoExporter
from ludus.runs.exporters.select import open_exporter

__all__ = ["Exporter", "Finished", "NoExporter", "open_exporter"]
