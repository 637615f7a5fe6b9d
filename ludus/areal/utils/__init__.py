"""The names of `areal.utils`: `from ludus.areal.utils import stats_tracker`."""

__all__: list[str] = []
