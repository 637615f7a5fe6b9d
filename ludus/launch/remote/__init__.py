"""A server of training started where the accelerator is, for a client that is elsewhere."""

__all__: list[str] = []
