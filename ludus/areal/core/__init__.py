"""Where earlier versions had `areal.infra`: `from ludus.areal.core import workflow_context`."""

__all__: list[str] = []
