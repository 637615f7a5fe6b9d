"""Rows of data sets."""

__all__: list[str] = []
