"""Which agent plays: the one that is passed in Python, else the one that the configuration or the rows name.

Knows: which keys of the configuration belong to which agent.  Knows not: how an agent is resolved or run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.agents.adapter import Door
from ludus.agents.kinds import resolve_workflow
from ludus.api.experiment import open_experiment
from ludus.compat.realhf.adapter import is_queue_agent
from ludus.compat.verl.adapter import LoopDoor
from ludus.compat.verl.plan import DEFAULT_LOOP, LoopPlan
from ludus.config import Config
from ludus.errors import ConfigError
from ludus.processes.pool import WorkerPool
from ludus.rollout.remote import AgentName, RemoteDoor
from ludus.rollout.settings import GenerationSettings
from ludus.rollout.subproc import SubprocDoor
from ludus.rollout.tasks import Row


def choose_agent(
    config: Config, workflow: object = None, kwargs: Mapping[str, Any] | None = None, *, rows: Sequence[Row] = ()
) -> Door:
    """The agent, with its keyword arguments; agent loops where the configuration, or the first of `rows`, names one.

    kwargs: None: those of the configuration for the agent that it names, none for another.
    Raises ConfigError if there is no agent, or if the configuration says something about another kind of agent.
    """
    if workflow is None and config.config_class is not None:
        if config.rollout.workers:
            return RemoteDoor(AgentName("", {}))
        workflow, kwargs = _of_experiment(config)
    if workflow is None and config.workflow is None and _wants_loops(config, rows):
        if config.rollout.agent.mode == "subproc":
            raise ConfigError("rollout.agent.mode='subproc' cannot act: agent loops play in this process; remove it")
        return LoopDoor(_loop_plan(config))
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
    if config.rollout.workers:
        door = RemoteDoor(AgentName.of(workflow, kwargs))
    elif config.rollout.agent.mode == "subproc":
        if is_queue_agent(workflow):
            raise ConfigError(
                "rollout.agent.mode='subproc' cannot act: queue agents ask for tokens in this process; remove it"
            )
        door = SubprocDoor(workflow, kwargs, max_workers=config.rollout.agent.subproc_max_workers)
    else:
        door = resolve_workflow(workflow, kwargs, loops=_loop_plan(config))
    if not isinstance(door, LoopDoor):
        _refuse_loop_keys(config, door)
    return door


def worker_door(config: Config, agent: AgentName, pool: WorkerPool) -> SubprocDoor:
    """The agent in a rollout worker, which plays in the processes of `pool`. Raises UserError if it cannot."""
    workflow, kwargs = (agent.reference, agent.kwargs) if agent.reference else _of_experiment(config)
    return SubprocDoor(workflow, kwargs, max_workers=pool.num_workers, pool=pool)


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


def _wants_loops(config: Config, rows: Sequence[Row]) -> bool:
    agent = config.rollout.agent
    is_named = agent.default_agent_loop is not None or agent.agent_loop_config_path is not None
    return is_named or (len(rows) > 0 and rows[0].get("agent_name") is not None)


def _loop_plan(config: Config) -> LoopPlan:
    rollout, generation, evaluation = config.rollout, config.gconfig, config.eval_generation
    return LoopPlan(
        default_agent_loop=rollout.agent.default_agent_loop or DEFAULT_LOOP,
        agent_loop_config_path=rollout.agent.agent_loop_config_path,
        multi_turn=rollout.multi_turn,
        prompt_length=rollout.prompt_length,
        response_length=rollout.response_length,
        reward=config.reward,
        config={
            "actor_rollout_ref": {
                "model": {"path": config.model.path},
                "rollout": {**_sampling(generation), "val_kwargs": _sampling(evaluation)},
            },
            "trainer": {"project_name": config.run_root, "experiment_name": config.name},
        },
    )


def _sampling(generation: GenerationSettings) -> dict[str, Any]:
    return {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k or -1,
        "n": generation.n_samples,
    }


def _refuse_loop_keys(config: Config, door: Door) -> None:
    """Raises ConfigError for a key that only agent loops read."""
    rollout = config.rollout
    deaf = {
        "rollout.agent.default_agent_loop": rollout.agent.is_set("default_agent_loop"),
        "rollout.agent.agent_loop_config_path": rollout.agent.is_set("agent_loop_config_path"),
        "rollout.prompt_length": rollout.is_set("prompt_length"),
        "rollout.response_length": rollout.is_set("response_length"),
        "rollout.multi_turn": rollout.is_set("multi_turn"),
        "reward": config.is_set("reward"),
    }
    for name, is_set in deaf.items():
        if is_set:
            raise ConfigError(f"{name} cannot act: agent loops alone read it, and {door.name} is none; remove it")
