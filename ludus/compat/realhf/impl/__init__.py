"""What is ready-made, laid out as in `realhf.impl`."""

__all__: list[str] = []
