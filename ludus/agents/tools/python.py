"""A tool that runs the model's Python code in the sandbox, in a fresh process for each call.

Knows: the sandbox, how its results read as text.  Knows not: how the sandbox isolates code.
Invariant: if the system cannot isolate code, nothing runs, unless the tool's config says `sandbox: none`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pydantic

from ludus.agents.tools.answer import ToolError
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.schema import OpenAIFunctionToolSchema, read_schema
from ludus.processes.sandbox import SandboxLimits, SandboxRun, run_python
from ludus.processes.walls import Sandboxing, walls
from ludus.settings import Settings

logger = logging.getLogger(__name__)

_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "Runs a Python script and returns what it prints and the value of its last expression.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The script. Nothing is kept between calls."}},
            "required": ["code"],
        },
    },
}


class PythonToolSettings(Settings):
    """The tool's `config`, with the keys of verl's sandbox tool."""

    type: str = "native"
    default_timeout: float = pydantic.Field(default=10.0, gt=0)
    """Most seconds of one run."""
    memory_limit_mb: int = pydantic.Field(default=1024, ge=64)
    disk_limit_mb: int = pydantic.Field(default=64, ge=1)
    """Most megabytes of all files of one run."""
    sandbox: Sandboxing = "required"
    """required: no code runs if the system cannot isolate it.  none: code runs unprotected."""
    num_workers: int = pydantic.Field(default=4, ge=1)
    """Most runs at a time, over all trajectories."""


class PythonTool(BaseTool):
    """The tool `code_interpreter` (or as its schema names it); its argument is `code`."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        super().__init__(config, tool_schema)
        settings = PythonToolSettings(**self.config)
        self._limits = SandboxLimits(
            timeout_s=settings.default_timeout,
            memory_bytes=settings.memory_limit_mb << 20,
            disk_bytes=settings.disk_limit_mb << 20,
        )
        self._sandboxing = settings.sandbox
        self._slots = asyncio.Semaphore(settings.num_workers)

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema or read_schema(_SCHEMA, "the schema of the Python tool")

    async def setup(self) -> None:
        """Raises UserError if this system cannot isolate code, or warns if the config lets it run all the same."""
        await asyncio.to_thread(walls, self._sandboxing)
        if self._sandboxing == "none":
            logger.warning("the tool %r runs a model's code unprotected: its config says sandbox: none", self.name)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, None, dict[str, float]]:
        code = parameters.get("code")
        if not isinstance(code, str):
            raise ToolError(f"the argument 'code' must be a text, got {code!r:.200}")
        async with self._slots:
            run = await run_python(code, limits=self._limits, shows_last=True, walled=self._sandboxing)
        metrics = {"ok": float(run.ending == "ok"), "time_s": run.time_s}
        return ToolResponse(text=_text(run, self._limits)), None, metrics


def _text(run: SandboxRun, limits: SandboxLimits) -> str:
    """The text for the model: the output, the error, and how the run ended if that adds anything."""
    parts = [run.stdout.rstrip("\n"), run.stderr.rstrip("\n")]
    if run.ending == "timeout":
        parts.append(f"(stopped after {limits.timeout_s:g} s)")
    elif run.ending == "error" and not run.stderr:
        parts.append(f"(exit status {run.exit_code})")
    text = "\n".join(part for part in parts if part)
    return text or "(no output)"
