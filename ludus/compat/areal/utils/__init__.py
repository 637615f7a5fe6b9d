"""The names of `areal.utils`: `from ludus.compat.areal.utils import stats_tracker`."""

__all__: list[str] = []
