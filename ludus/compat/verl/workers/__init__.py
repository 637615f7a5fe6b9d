"""As in `verl.workers`."""

__all__: list[str] = []
