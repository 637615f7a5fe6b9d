"""Which agent plays: the one that is passed in Python, else the one that the configuration or the rows name.

Knows: which keys of the configuration belong to which agent.  Knows not: how an agent is resolved or run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.agents.adapter import Door
from ludus.agents.kinds import kind_of, load_kind, resolve_workflow
from ludus.api.experiment import open_experiment
from ludus.config import Config
from ludus.errors import ConfigError
from ludus.processes.pool import WorkerPool
from ludus.rollout.remote import AgentName, RemoteDoor
from ludus.rollout.subproc import SubprocDoor
from ludus.rollout.tasks import Row
from ludus.settings import import_object


def choose_agent(
    config: Config, workflow: object = None, kwargs: Mapping[str, Any] | None = None, *, rows: Sequence[Row] = ()
) -> Door:
    """The agent, with its keyword arguments; where the configuration or `rows` name one of another kind, that.

    kwargs: None: those of the configuration for the agent that it names, none for another.
    Raises ConfigError if there is no agent, or if the configuration says something about another kind of agent.
    """
    if workflow is None and config.config_class is not None:
        if config.rollout.workers:
            return RemoteDoor(AgentName("", {}))
        workflow, kwargs = _of_experiment(config)
    named_by_rows = config.row_kind(rows) if workflow is None and config.workflow is None else None
    if named_by_rows is not None:
        _refuse_processes(config, "agents that rows name")
        return load_kind(named_by_rows).of_rows(config)
    if workflow is None and config.workflow is None:
        raise ConfigError(
            "no agent was given: set workflow='pkg.mod:Name', or pass workflow=… in Python; agent loops are played "
            "where rows have the column 'agent_name' or rollout.agent.default_agent_loop is set"
        )
    if workflow is not None and config.workflow_kwargs and config.workflow is None:
        raise ConfigError(
            "workflow_kwargs of the configuration cannot act: they belong to the agent that `workflow` names there, "
            "and the agent was passed in Python; pass workflow_kwargs=… beside it"
        )
    if workflow is None:
        workflow, kwargs = config.workflow, config.workflow_kwargs if kwargs is None else kwargs
    door: Door
    kind = None
    if config.rollout.workers:
        door = RemoteDoor(AgentName.of(workflow, kwargs))
    elif config.rollout.agent.mode == "subproc":
        if kind_of(workflow, config.agent_kinds) is not None:
            _refuse_processes(config, "agents of this kind")
        own = config.rollout.agent.subproc_max_workers
        door = SubprocDoor(workflow, kwargs, max_workers=own, kinds=config.agent_kinds)
    else:
        workflow = import_object(workflow) if isinstance(workflow, str) else workflow
        kind = kind_of(workflow, config.agent_kinds)
        door = resolve_workflow(workflow, kwargs, config, kinds=config.agent_kinds)
    for name, readers in config.unread_by(kind).items():
        raise ConfigError(f"{name} cannot act: {readers} alone read it, and {door.name} is none; remove it")
    return door


def worker_door(config: Config, agent: AgentName, pool: WorkerPool) -> SubprocDoor:
    """The agent in a rollout worker, which plays in the processes of `pool`. Raises UserError if it cannot."""
    workflow, kwargs = (agent.reference, agent.kwargs) if agent.reference else _of_experiment(config)
    return SubprocDoor(workflow, kwargs, max_workers=pool.num_workers, pool=pool, kinds=config.agent_kinds)


def _of_experiment(config: Config) -> tuple[object, Mapping[str, Any]]:
    """The agent that a class of the user's own makes, and the environment with which it is played, if any."""
    experiment = open_experiment(config)
    env = getattr(experiment, "env", None)
    return experiment.agent, {} if env is None else {"env": env}


def choose_eval_agent(
    config: Config, workflow: object = None, kwargs: Mapping[str, Any] | None = None, *, rows: Sequence[Row] = ()
) -> Door | None:
    """The agent of evaluations, as `choose_agent` chooses. None: the one that is trained."""
    if workflow is None and config.eval_workflow is None:
        if kwargs or config.eval_workflow_kwargs:
            raise ConfigError(
                "eval_workflow_kwargs cannot act without eval_workflow: evaluations are played by the agent that is "
                "trained, with its workflow_kwargs; set eval_workflow, to the same agent if you like"
            )
        return None
    if workflow is not None and config.eval_workflow_kwargs and config.eval_workflow is None:
        raise ConfigError("eval_workflow_kwargs of the configuration cannot act: the agent was passed in Python")
    named = config.eval_workflow if workflow is None else workflow
    if workflow is None and kwargs is None:
        kwargs = config.eval_workflow_kwargs
    own = config.model_copy(update={"workflow": None, "workflow_kwargs": {}, "config_class": None})
    return choose_agent(own, named, kwargs, rows=rows)


def _refuse_processes(config: Config, what: str) -> None:
    """Raises ConfigError if the agent is to have processes of its own, and cannot."""
    if config.rollout.agent.mode == "subproc":
        raise ConfigError(
            f"rollout.agent.mode='subproc' cannot act: {what} ask the model by tokens, inside this program; remove it"
        )
