"""Which agent plays: the one that is passed in Python, else the one that the configuration names.

Knows: which `workflow_kwargs` belong to which agent.  Knows not: how an agent is resolved or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.agents.door import Door
from ludus.agents.resolve import resolve_workflow
from ludus.config import Config
from ludus.errors import ConfigError
from ludus.rollout.subproc import SubprocDoor


def choose_agent(config: Config, workflow: object = None, kwargs: Mapping[str, Any] | None = None) -> Door:
    """The agent, with its keyword arguments.

    kwargs: None: those of the configuration for the agent that it names, none for another.
    Raises ConfigError if there is no agent, or if the configuration has keyword arguments for none.
    """
    if workflow is None:
        if config.workflow is None:
            raise ConfigError("no agent was given: set workflow='pkg.mod:Name', or pass workflow=… in Python")
        return _resolve(config, config.workflow, config.workflow_kwargs if kwargs is None else kwargs)
    if config.workflow_kwargs and config.workflow is None:
        raise ConfigError(
            "workflow_kwargs of the configuration cannot act: they belong to the agent that `workflow` names there, "
            "and the agent was passed in Python; pass workflow_kwargs=… beside it"
        )
    return _resolve(config, workflow, kwargs)


def _resolve(config: Config, workflow: object, kwargs: Mapping[str, Any] | None) -> Door:
    agent = config.rollout.agent
    if agent.mode == "subproc":
        return SubprocDoor(workflow, kwargs, max_workers=agent.subproc_max_workers)
    return resolve_workflow(workflow, kwargs)
