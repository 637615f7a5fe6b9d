"""Where earlier versions had `areal.infra`: `from ludus.compat.areal.core import workflow_context`."""

__all__: list[str] = []
