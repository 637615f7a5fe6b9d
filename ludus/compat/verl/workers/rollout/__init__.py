"""As in `verl.workers.rollout`."""

__all__: list[str] = []
