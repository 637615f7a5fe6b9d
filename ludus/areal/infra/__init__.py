"""The names of `areal.infra`: `from ludus.areal.infra import workflow_context`."""

__all__: list[str] = []
