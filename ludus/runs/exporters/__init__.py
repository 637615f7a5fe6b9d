"""Finished episodes in other people's viewers."""
