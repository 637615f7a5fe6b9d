"""The interfaces, laid out as in `realhf.api`."""

__all__: list[str] = []
