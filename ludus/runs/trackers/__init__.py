"""Runs in other people's trackers: their metrics, their episodes as traces, and how they ended."""
