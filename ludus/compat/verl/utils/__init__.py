"""As in `verl.utils`."""

__all__: list[str] = []
