"""Configurations, laid out as in `realhf.experiments`."""

__all__: list[str] = []
