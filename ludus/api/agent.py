"""Chooses the agent: the one passed in Python, else the one that the configuration or the rows name.

Knows: which keys of the configuration belong to which agent.  Knows not: how an agent is resolved or run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.agents.adapter import AgentAdapter
from ludus.agents.kinds import kind_of, load_kind, resolve_workflow
from ludus.api.experiment import open_experiment
from ludus.config import Config
from ludus.errors import ConfigError
from ludus.import_strings import import_object
from ludus.loop.settings import SourceSettings
from ludus.processes.pool import WorkerPool
from ludus.rewards.providers import PROVIDERS
from ludus.rollout.mixture import Row, Source
from ludus.rollout.own_python import OwnPythonAgentAdapter
from ludus.rollout.remote import AgentName, RemoteAgentAdapter
from ludus.rollout.runner import Players
from ludus.rollout.settings import SubprocSettings
from ludus.rollout.subproc import SubprocessAgentAdapter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenAgent:
    """An agent that may have been passed in Python."""

    workflow: object = None
    """None: it was not."""
    kwargs: Mapping[str, Any] | None = None


NOT_GIVEN = GivenAgent()


def choose_agent(
    config: Config, workflow: object = None, kwargs: Mapping[str, Any] | None = None, *, rows: Sequence[Row] = ()
) -> AgentAdapter:
    """The agent that was given, else the one that the configuration or the rows name.

    kwargs: None: for the configuration's agent the configuration's, for another agent none.
    Raises ConfigError if there is no agent. Keys of the configuration that this kind of agent does not read are warned
    about.
    """
    agent = config.rollout.agent
    if workflow is None and config.config_class is not None:
        if config.rollout.num_workers:
            return RemoteAgentAdapter(AgentName("", {}))
        workflow, kwargs = _of_experiment(config)
    named_by_rows = config.row_kind(rows) if workflow is None and config.workflow is None else None
    if named_by_rows is not None:
        _say_processes(config)
        return load_kind(named_by_rows)(None, {}, config)
    if workflow is None and config.workflow is None:
        raise ConfigError(
            "no agent was given: set workflow='pkg.mod:Name', or pass workflow=… in Python; agent loops are played "
            "where rows have the column 'agent_name' or rollout.agent.default_agent_loop is set"
        )
    if workflow is not None and config.workflow_kwargs and config.workflow is None:
        _warn("workflow_kwargs", "they are of the agent that `workflow` names, and the agent was passed in Python")
    if workflow is None:
        workflow, kwargs = config.workflow, config.workflow_kwargs if kwargs is None else kwargs
    agent_adapter: AgentAdapter
    kind = None
    if isinstance(agent, SubprocSettings) and agent.workers:
        agent_adapter = RemoteAgentAdapter(AgentName.of(workflow, kwargs))
    elif isinstance(agent, SubprocSettings) and agent.python is not None:
        most, variables = agent.subproc_max_workers, agent_variables(config)
        agent_adapter = OwnPythonAgentAdapter(agent.python, workflow, kwargs, max_workers=most, variables=variables)
    elif isinstance(agent, SubprocSettings) and kind_of(workflow, config.agent_kinds) is None:
        agent_adapter = SubprocessAgentAdapter(
            workflow,
            kwargs,
            max_workers=agent.subproc_max_workers,
            kinds=config.agent_kinds,
            variables=agent_variables(config),
        )
    else:
        workflow = import_object(workflow) if isinstance(workflow, str) else workflow
        kind = kind_of(workflow, config.agent_kinds)
        _say_processes(config)
        agent_adapter = resolve_workflow(workflow, kwargs, config, kinds=config.agent_kinds)
    for name, readers in config.unread_by(kind).items():
        _warn(name, f"{readers} alone read it, and {agent_adapter.name} is none")
    return agent_adapter


def agent_variables(config: Config) -> tuple[str, ...]:
    """Environment variables that agents in processes of their own get: those that the configuration names, and those
    with the API keys of actors."""
    agent, names = config.rollout.agent, list[str]()
    for actor in config.rollout.actors.values():
        provider = PROVIDERS.get(actor.model.partition("/")[0])
        own = None if provider is None or actor.base_url is not None else provider.key_variable
        names += [name for name in (actor.api_key_env or own,) if name is not None]
    named = agent.env if isinstance(agent, SubprocSettings) else ()
    return (*named, *names, *config.scheduler.rollout.env)


def _warn(key: str, why: str) -> None:
    logger.warning("%s does not act: %s", key, why)


def worker_agent_adapter(config: Config, agent: AgentName, pool: WorkerPool) -> SubprocessAgentAdapter:
    """The agent in a rollout worker, which plays in the processes of `pool`. Raises UserError if it cannot."""
    workflow, kwargs = (agent.reference, agent.kwargs) if agent.reference else _of_experiment(config)
    return SubprocessAgentAdapter(workflow, kwargs, max_workers=pool.num_workers, pool=pool, kinds=config.agent_kinds)


def _of_experiment(config: Config) -> tuple[object, Mapping[str, Any]]:
    """The agent that the user's `config_class` makes, and its environment, if any, as a keyword argument."""
    experiment = open_experiment(config)
    env = getattr(experiment, "env", None)
    return experiment.agent, {} if env is None else {"env": env}


def choose_eval_agent(
    config: Config, workflow: object = None, kwargs: Mapping[str, Any] | None = None
) -> AgentAdapter | None:
    """The agent that plays evaluations, chosen as by `choose_agent`. None: the one that is trained."""
    if workflow is None and config.eval_workflow is None:
        if kwargs:
            raise ConfigError(
                "eval_workflow_kwargs cannot act without eval_workflow: evaluations are played by the agent that is "
                "trained, with its workflow_kwargs; pass eval_workflow=…, the same agent if you like"
            )
        if config.eval_workflow_kwargs:
            _warn("eval_workflow_kwargs", "without eval_workflow the agent that is trained plays evaluations too")
        return None
    if workflow is not None and config.eval_workflow_kwargs and config.eval_workflow is None:
        _warn("eval_workflow_kwargs", "they are of the agent that `eval_workflow` names, and it was passed in Python")
    named = config.eval_workflow if workflow is None else workflow
    if workflow is None and kwargs is None:
        kwargs = config.eval_workflow_kwargs
    own = config.model_copy(update={"workflow": None, "workflow_kwargs": {}, "config_class": None})
    return choose_agent(own, named, kwargs)


def choose_players(
    config: Config,
    agent: GivenAgent = NOT_GIVEN,
    eval_agent: GivenAgent = NOT_GIVEN,
    *,
    train: Sequence[Source] = (),
    held_out: Sequence[Source] = (),
) -> Players:
    """The agents that play the rows of these datasets: a dataset's own, where its settings name one, else the run's.

    agent, eval_agent: what was passed in Python.
    Raises ConfigError as `choose_agent` does if a dataset has no agent.
    """
    training = _own_agents(config, config.train_dataset.mix, agent, (*train, *held_out))
    evaluation = _own_agents(config, config.valid_dataset.mix, agent, held_out)
    chosen = choose_eval_agent(config, eval_agent.workflow, eval_agent.kwargs)
    if chosen is not None:
        evaluation[""] = chosen
    players = Players(training, evaluation)
    left = [each for each in train if players.find(each.name, is_eval=False) is None]
    left += [each for each in held_out if players.find(each.name, is_eval=True) is None]
    if left:
        training[""] = choose_agent(config, agent.workflow, agent.kwargs, rows=left[0].rows)
    return players


def _own_agents(
    config: Config, mix: Mapping[str, SourceSettings], agent: GivenAgent, sources: Sequence[Source]
) -> dict[str, AgentAdapter]:
    """The datasets' own agents, by dataset name. One whose settings give arguments alone has the run's agent with
    these."""
    rows = {source.name: source.rows for source in sources}
    own = config.model_copy(update={"workflow": None, "workflow_kwargs": {}, "config_class": None})
    return {
        name: choose_agent(
            own, each.workflow or agent.workflow or config.workflow, each.workflow_kwargs, rows=rows[name]
        )
        for name, each in mix.items()
        if name in rows and each.has_own_agent
    }


def _say_processes(config: Config) -> None:
    if config.rollout.agent.mode == "subproc":
        _warn("rollout.agent.mode", "agents of this kind ask the model by tokens, inside this program")
