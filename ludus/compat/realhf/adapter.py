"""The adapter of queue agents: an episode is one call of `collect_trajectory`, whose samples are matched with the
record.

Knows: agents, environments, samples, the record.  Knows not: groups, advantages, training.
Invariant: only recorded tokens are trained; a sample says which of them, and with what reward.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ludus.agents.adapter import EpisodeContext
from ludus.agents.environments.base import EnvironmentService
from ludus.agents.plain import construct, refuse_kwargs
from ludus.compat.realhf.abstraction import AgentAbstraction, EnvServiceAbstraction, find
from ludus.compat.realhf.agent import Agent, make_agent
from ludus.compat.realhf.environments import ALL_ENV_CLASSES, make_env
from ludus.compat.realhf.inference import Inference
from ludus.compat.realhf.prompts import ROW, prompt_sample, query_id
from ludus.compat.realhf.sample import SequenceSample
from ludus.episodes.claim import TokenRow, claim_rows
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.settings import Settings

_ENV_FORMS = (
    "an environment or its class, EnvServiceAbstraction(type_, args), the same as a mapping, or a registered name"
)


class QueueAdapter:
    """One agent and one environment, ready to play."""

    def __init__(self, agent: Any, env: Any) -> None:
        self._agent = agent
        self._env = env

    def __repr__(self) -> str:
        return f"QueueAdapter({self.name}, env={type(self._env).__qualname__})"

    @property
    def name(self) -> str:
        return type(self._agent).__qualname__

    async def setup(self) -> None:
        """Nothing to do: agent and environment were already made."""

    async def close(self) -> None:
        if isinstance(self._env, EnvironmentService):
            await self._env.close()

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """Play an episode; returns the rewards of its trajectories. None: there are none."""
        session = context.session
        if session is None:
            raise UserError("a queue agent needs the model's tokens in this process: set rollout.agent.mode=inline")
        row = copy.deepcopy(dict(data))
        takes_prompt = not isinstance(self._agent, Agent) or self._agent.takes_prompt
        qid = query_id(row, context.info.task_id)
        prompt = prompt_sample(row, session.text, qid, takes_prompt=takes_prompt)
        env = self._env.for_episode(row) if isinstance(self._env, EnvironmentService) else self._env
        try:
            async with Inference(session) as inference:
                samples = await self._agent.collect_trajectory(
                    prompt=prompt, env=env, obs_queue=inference.obs_queue, act_queue=inference.act_queue
                )
        finally:
            if env is not self._env:
                await env.close()
        return result_of(samples, session.snapshot())


def from_queue(workflow: Any, kwargs: Mapping[str, Any], _: Settings | None) -> QueueAdapter:
    """The adapter of an agent with `collect_trajectory`, or of the abstraction of a registered one.

    kwargs: `env` is its environment, the others go to the constructor of a class.

    Raises UserError if the agent, its arguments or the environment is invalid.
    """
    own = dict(kwargs)
    env = _environment(own.pop("env", None))
    if isinstance(workflow, AgentAbstraction):
        if own:
            raise UserError(f"workflow_kwargs {sorted(own)} cannot act: the arguments of an AgentAbstraction are in it")
        agent = make_agent(workflow)
    elif inspect.isclass(workflow):
        agent = construct(workflow, own)
    else:
        refuse_kwargs(workflow, own)
        agent = workflow
    collect = getattr(agent, "collect_trajectory", None)
    if not inspect.iscoroutinefunction(collect):
        raise UserError(f"{type(agent).__qualname__} must have `async def collect_trajectory`")
    return QueueAdapter(agent, env)


def result_of(samples: object, record: Any) -> Result | None:
    """The samples' rewards as a `Result`. None: there are no samples, which rejects the episode.

    Raises UserError for anything but a list of samples, and for a sample that does not match the record.
    """
    if samples is None or not isinstance(samples, list | tuple):
        raise UserError(
            f"collect_trajectory returned {samples!r:.200} of type {type(samples).__name__}; "
            "return a list of SequenceSample, empty to reject the episode"
        )
    if not samples:
        return None
    rows: list[TokenRow] = []
    metadata: dict[str, list[Any]] = {}
    for sample in samples:
        if not isinstance(sample, SequenceSample):
            raise UserError(
                f"collect_trajectory returned a {type(sample).__name__} among its samples; allowed: SequenceSample"
            )
        rows.extend(rows_of(sample))
        for name, values in sample.metadata.items():
            if name != ROW:  # the row, copied from the prompt's metadata, is already part of the episode
                metadata.setdefault(name, []).extend(values)
    numbers = {name: values for name, values in metadata.items() if all(isinstance(each, Real) for each in values)}
    metrics = {name: math.fsum(values) / len(values) for name, values in numbers.items() if values}
    others = {name: values for name, values in metadata.items() if name not in metrics}
    return claim_rows(record, rows, metrics=metrics, metadata=others, are_returns=True)


def rows_of(sample: SequenceSample) -> list[TokenRow]:
    """A row for each sequence of the sample, with its mask and reward.

    Raises UserError if a key is missing or keys are inconsistent.
    """
    try:
        sequences, masks = ([ids for _, ids in sample.sequences(key)] for key in ("packed_input_ids", "prompt_mask"))
        rewards = [value for _, values in sample.sequences("rewards") for value in values]
    except KeyError as missing:
        raise UserError(
            f"{missing.args[0]}; a sample needs packed_input_ids, prompt_mask (1 on the prompt) and rewards"
        ) from None
    if not len(sequences) == len(masks) == len(rewards):
        raise UserError(
            f"a sample has {len(sequences)} sequences under packed_input_ids, {len(masks)} under prompt_mask and "
            f"{len(rewards)} rewards; there must be one of each for every sequence"
        )
    return [
        TokenRow(ids, [not is_prompt for is_prompt in mask], reward)
        for ids, mask, reward in zip(sequences, masks, rewards, strict=True)
    ]


def _environment(env: Any) -> Any:
    if env is None or isinstance(env, Mapping):
        unknown = sorted(set(env or ()) - {"type_", "args"})
        if unknown:
            raise UserError(f"env has the unknown key {unknown[0]!r}; it takes type_ and args")
        env = EnvServiceAbstraction(**(env or {}))
    if isinstance(env, EnvServiceAbstraction):
        return make_env(env)
    if isinstance(env, str):
        env = find(ALL_ENV_CLASSES, env) or import_object(env)
    if inspect.isclass(env):
        env = construct(env, {})
    for name in ("reset", "step"):
        if not inspect.iscoroutinefunction(getattr(env, name, None)):
            raise UserError(f"env is {env!r:.100}, which has no `async def {name}`; pass {_ENV_FORMS}")
    return env
