"""Configurations of asynchronous experiments."""

__all__: list[str] = []
