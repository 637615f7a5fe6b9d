"""Parameters that experiments share."""

__all__: list[str] = []
