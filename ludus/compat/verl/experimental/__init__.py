"""As in `verl.experimental`."""

__all__: list[str] = []
