"""As in `verl.tools`."""

__all__: list[str] = []
