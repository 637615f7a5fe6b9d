"""The names of `areal.infra`: `from ludus.compat.areal.infra import workflow_context`."""

__all__: list[str] = []
