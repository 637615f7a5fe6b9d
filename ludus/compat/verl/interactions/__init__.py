"""As in `verl.interactions`."""

__all__: list[str] = []
