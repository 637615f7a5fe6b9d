"""Adapter of verl's agent loops: the row names the loop, a new object of it runs, and its output is matched with the
record.

Knows: rows in verl's format, loops by name, the record.  Knows not: how any loop works.
Invariant: only recorded tokens are trained, whatever a loop returns.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ludus.agents.adapter import EpisodeContext
from ludus.agents.signatures import accepted
from ludus.compat.config import Config
from ludus.compat.verl.base import AgentLoopBase
from ludus.compat.verl.config_view import DictConfigWrap, ToolListWrap
from ludus.compat.verl.function_tools import as_verls
from ludus.compat.verl.messages import plain, prompt_of
from ludus.compat.verl.output import AgentLoopOutput
from ludus.compat.verl.parser import ToolParser
from ludus.compat.verl.registry import LoopSpec, find_loop, registered_loops
from ludus.compat.verl.resources import DEFAULT_LOOP, LoopResources, loop_config, loop_settings
from ludus.compat.verl.scoring import Score, load_compute_score, score_outputs
from ludus.compat.verl.server import AsyncLLMServerManager, sampling_params_of
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.episodes.claim import claim_rows
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.settings import Settings

logger = logging.getLogger(__name__)

_TIMES = ("generate_sequences", "tool_calls", "compute_score")


class LoopAdapter:
    """Plays each row with the loop that its `agent_name` names."""

    def __init__(self, config: Config, default: LoopSpec | None = None) -> None:
        """default: the loop for rows without `agent_name`. None: the configured one.

        Raises UserError if something named in the configuration does not exist.
        """
        settings = loop_settings(config)
        self._loops = registered_loops(settings.agent_loop_config_path)
        self._default = default or find_loop(self._loops, settings.default_agent_loop or DEFAULT_LOOP)
        self._run = LoopResources.load(config)
        ToolParser.check(config.rollout.multi_turn.format)
        self._compute_score = load_compute_score(config.reward.custom_reward_function)
        self._config = DictConfigWrap(loop_config(config), self._run)
        self._named: set[str] = set()
        """Ignored arguments of `generate` that were already logged."""
        self._leaves_out = False
        """Whether a row was left out, which is logged once."""

    def __repr__(self) -> str:
        return f"LoopAdapter(default={self._default.name}, loops={sorted(self._loops)})"

    @property
    def name(self) -> str:
        return self._default.cls.__qualname__

    async def setup(self) -> None:
        """Start the tools, and reset every loop's class for this run."""
        for spec in (*self._loops.values(), self._default):
            spec.cls._class_initialized = False
        await self._run.tool_set.setup()

    async def close(self) -> None:
        await self._run.tool_set.close()

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """Play an episode; returns its rewards, and which tokens to leave out. Raises UserError for an invalid row."""
        if context.session is None:
            raise UserError(
                "agent loops ask the model by tokens, inside this program: play them with rollout.agent.mode=inline, "
                "and not in front of somebody else's URL"
            )
        row = copy.deepcopy(plain(data))
        tokenizer = LoopTokenizer(context.session.text)
        if (why := self._left_out(row, tokenizer)) is not None:
            return Result(None, metadata={"left_out": why})
        name = row.get("agent_name")
        spec = self._default if name is None else find_loop(self._loops, name)
        config = self._run.config
        manager = AsyncLLMServerManager(
            context.session,
            response_length=config.rollout.response_length,
            named=self._named,
            model_path=config.model.path,
        )
        loop = spec.cls(
            trainer_config=self._config,
            server_manager=manager,
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(self._config.config.data, self._run),
            **{**self._tools_for(spec.cls), **spec.kwargs},
        )
        returned = await _run(loop, sampling_params_of(context.session.sampling), row, context)
        outputs = _read_outputs(returned, spec.name)
        if outputs is None:
            return None
        score = Score(0.0)  # no tokens were sampled, so there is nothing to score
        if all(output.reward_score is None for output in outputs):
            score = await score_outputs(outputs, row, self._compute_score, tokenizer)
            outputs[-1].reward_score = score.reward
        extra = outputs[-1].extra_fields
        kept = {name: extra[name] for name in extra if name not in ("messages", "metrics")}  # both are recorded already
        claimed = claim_rows(
            context.session.snapshot(),
            [output.row() for output in outputs],
            metrics=_metrics(outputs, score),
            metadata={**kept, **score.metadata},
        )
        *others, last = outputs
        if any(output.reward_score is not None for output in others):
            return claimed
        return replace(claimed, reward=last.reward_score)  # one number, of all

    def _left_out(self, row: Mapping[str, Any], tokenizer: LoopTokenizer) -> str | None:
        """Why the row is not to be played: its prompt is too long. None: it is."""
        rollout = self._run.config.rollout
        if not rollout.filter_overlong_prompts or rollout.prompt_length is None:
            return None
        schemas = [as_verls(tool).tool_schema for tool in self._run.tool_set.tools]
        how = self._config.config.data.get("apply_chat_template_kwargs") or {}
        tools = [schema for schema in schemas if schema is not None]
        num_tokens = len(tokenizer.apply_chat_template(prompt_of(row), tools, add_generation_prompt=True, **how))
        if num_tokens <= rollout.prompt_length:
            return None
        why = f"the prompt has {num_tokens} tokens, tools included, and rollout.prompt_length={rollout.prompt_length}"
        if not self._leaves_out:
            self._leaves_out = True
            logger.warning("rows whose prompt is too long are left out; of the first %s", why)
        return why

    def _tools_for(self, cls: type[AgentLoopBase]) -> dict[str, Any]:
        """The run's tools, in verl's form, if the loop accepts them."""
        if (names := accepted(cls)) is not None and "tools" not in names:
            return {}
        return {"tools": ToolListWrap([as_verls(tool) for tool in self._run.tool_set.tools])}


def from_loop(cls: Any, kwargs: Mapping[str, Any], settings: Settings | None) -> LoopAdapter:
    """The adapter of a loop's class; `kwargs` are passed in addition to the arguments of all loops. cls: None: rows
    name their loops.

    Raises UserError if it is an object, or has no `run`.
    """
    config = settings if isinstance(settings, Config) else Config()
    if cls is None:
        return LoopAdapter(config)
    if not (inspect.isclass(cls) and issubclass(cls, AgentLoopBase)):
        raise UserError(
            f"an agent loop is given as its class, {type(cls).__qualname__}, not as an object: each trajectory has one "
            "of its own; give constructor arguments as workflow_kwargs"
        )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise UserError(
            f"{cls.__qualname__} has no `{missing}`; write `async def run(self, sampling_params, **kwargs)`"
        )
    return LoopAdapter(config, LoopSpec(cls, dict(kwargs)))


async def _run(
    loop: AgentLoopBase, sampling_params: dict[str, Any], row: dict[str, Any], context: EpisodeContext
) -> object:
    """Call `run`; returns its result. It gets the row's columns, also under names that older versions of verl use."""
    extra = row.get("extra_info") or {}
    if extra.get("need_tools_kwargs") and not extra.get("tools_kwargs"):
        raise UserError("extra_info.need_tools_kwargs is true and the row has no extra_info.tools_kwargs; add them")
    prompt = prompt_of(row)
    given: dict[str, Any] = {
        "tools_kwargs": extra.get("tools_kwargs") or {},
        "interaction_kwargs": extra.get("interaction_kwargs") or {},
        "index": extra.get("index", 0),
        "uid": context.info.group_id,
        **row,
        "raw_prompt": prompt,
    }
    if "sampling_params" in row:
        raise UserError("the row has a column 'sampling_params', which is the run's to give; name the column otherwise")
    parameters = inspect.signature(loop.run).parameters
    if "messages" in parameters:  # name of the prompt in verl's first loops
        given["messages"] = prompt
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        given = {name: value for name, value in given.items() if name in parameters}
    return await loop.run(sampling_params=sampling_params, **given)


def _read_outputs(returned: object, name: str) -> list[AgentLoopOutput] | None:
    """None: the loop rejected the episode. Raises UserError for what is no output."""
    if returned is None:
        return None
    outputs: list[Any] = list(returned) if isinstance(returned, list | tuple) else [returned]
    wrong = next((type(output).__name__ for output in outputs if not isinstance(output, AgentLoopOutput)), None)
    if wrong is not None:
        raise UserError(
            f"run of {name} returned a {wrong}; allowed: an AgentLoopOutput, a list of them, or None to reject the "
            "episode"
        )
    if not outputs:
        raise UserError(f"run of {name} returned an empty list; return None to reject the episode")
    return outputs


def _metrics(outputs: Sequence[AgentLoopOutput], score: Score) -> dict[str, float]:
    last = outputs[-1]
    found = {f"time/{name}_s": float(getattr(last.metrics, name)) for name in _TIMES}
    found["time/compute_score_s"] = score.took_s or found["time/compute_score_s"]
    found["num_turns"] = float(last.num_turns)
    if len(outputs) > 1:
        found["num_outputs"] = float(len(outputs))
    if "truncated" in last.extra_fields:
        found["truncated"] = float(last.extra_fields["truncated"])
    own = last.extra_fields.get("metrics")
    return {**found, **(own if isinstance(own, Mapping) else {}), **score.metrics}
