"""The interfaces of agents, environments, samples and answers."""

__all__: list[str] = []
