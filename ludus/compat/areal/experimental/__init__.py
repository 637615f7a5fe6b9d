"""The names of `areal.experimental`."""

__all__: list[str] = []
