"""The loop of an agent with tools and, where the row asks for one, a simulated user.

Knows: turns, tools, limits.  Knows not: rewards' meaning, how tokens are matched.
Invariants: a limit is met before the request that would break it, so no token is sampled to be thrown away; every call
gets an answer, also one that cannot be decoded, is unknown, or is one too many.

    PENDING ─▶ GENERATING ─▶ PROCESSING_TOOLS ─▶ GENERATING …      calls, or what began as one
                   │   └────▶ INTERACTING ─────▶ GENERATING …      none, and there is a user
                   └────────▶ TERMINATED                           none, or a limit is met
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import uuid4

from ludus.agents.tools import EpisodeTools, ToolResult
from ludus.agents.tools.episode_tools import too_many
from ludus.compat.verl.base import AgentLoopBase, simple_timer
from ludus.compat.verl.interaction import BaseInteraction, read_reply
from ludus.compat.verl.messages import message_value, read_messages
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput, outputs_of
from ludus.compat.verl.plan import LoopPlan, LoopResources
from ludus.episodes.limits import LIMIT_CODES
from ludus.errors import AgentError, UserError
from ludus.runs.spans import span
from ludus.types import ChatRequest, Message, ToolCall, Turn


class AgentState(Enum):
    """What comes next."""

    PENDING = "pending"
    GENERATING = "generating"
    PROCESSING_TOOLS = "processing_tools"
    INTERACTING = "interacting"
    TERMINATED = "terminated"


@dataclass(eq=False)
class AgentData:
    """One trajectory as it grows; tools that take `agent_data` are given it."""

    messages: list[Message]
    episode_tools: EpisodeTools | None = None
    """None: before it is opened."""
    tools_kwargs: Mapping[str, Any] = field(default_factory=dict)
    interaction: BaseInteraction | None = None
    """None: nobody answers the model but tools."""
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = field(default_factory=lambda: uuid4().hex)
    """Of the simulated user's instance too."""
    turns: list[Turn] = field(default_factory=list)
    user_turns: int = 0
    num_first_prompt: int = 0
    """Tokens of the first prompt."""
    turn_scores: list[float] = field(default_factory=list)
    """What a simulated user gave each answer."""
    timing: dict[str, float] = field(default_factory=dict)
    ended_by: str = "answer"
    """`answer`, `user`, or the name of the limit that was met."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Free for tools: what one call leaves there, the next one finds."""

    @property
    def assistant_turns(self) -> int:
        return len(self.turns)

    @property
    def is_truncated(self) -> bool:
        """A limit ended the trajectory, or cut its last answer."""
        was_cut = bool(self.turns) and self.turns[-1].sampled.stop_reason == "length"
        return was_cut or self.ended_by not in ("answer", "user")


class ToolAgentLoop(AgentLoopBase):
    """Answers until it calls no more tools. Derive from it to change a step."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        extra = kwargs.get("extra_info") or {}
        run = self._run_parts()
        self._check_format(run.plan)
        data = AgentData(
            messages=list(read_messages(kwargs["raw_prompt"])),
            tools_kwargs=kwargs.get("tools_kwargs") or {},
            interaction_kwargs=kwargs.get("interaction_kwargs") or {},
        )
        async with (
            run.tool_set.open(
                data.tools_kwargs,
                extra.get("tool_selection"),
                tokenizer=self.tokenizer.text.tokenizer,
                agent_data=data,
            ) as episode_tools,
            self._user(data, run),
        ):
            data.episode_tools = episode_tools
            state = AgentState.PENDING
            while state is not AgentState.TERMINATED:
                state = await self._step(state, data, sampling_params)
        return self._output(data, episode_tools)

    async def _step(self, state: AgentState, data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        match state:
            case AgentState.PENDING:
                return await self._handle_pending_state(data, sampling_params)
            case AgentState.GENERATING:
                return await self._handle_generating_state(data, sampling_params)
            case AgentState.PROCESSING_TOOLS:
                return await self._handle_processing_tools_state(data)
            case _:
                return await self._handle_interacting_state(data)

    async def _handle_pending_state(self, data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        """Raises UserError for a prompt that is longer than it may be: a part of it would say something else."""
        plan = self._run_parts().plan
        data.num_first_prompt = self._count_prompt(data)
        if plan.prompt_length is not None and data.num_first_prompt > plan.prompt_length:
            raise UserError(
                f"the prompt has {data.num_first_prompt} tokens, tools included, and rollout.prompt_length="
                f"{plan.prompt_length}; raise it, or leave the row out"
            )
        return AgentState.GENERATING

    async def _handle_generating_state(self, data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        try:
            room = self._room(data)
            if room is not None and room < 1:
                return _end(data, "response_length")
            with simple_timer("generate_sequences", data.timing):
                turn = await self.server_manager.complete(
                    data.messages,
                    tools=_open_tools(data).specs,
                    sampling_params=_capped(sampling_params, room, self.server_manager.session.sampling.max_new_tokens),
                    template_kwargs=self.data_config.get("apply_chat_template_kwargs"),
                )
        except AgentError as error:
            if not data.turns or error.code not in LIMIT_CODES:
                raise
            return _end(data, error.code)
        data.turns.append(turn)
        data.messages.append(turn.reply)
        has_calls = bool(turn.reply.tool_calls or turn.undecoded)
        if not has_calls and data.interaction is None:
            return _end(data, "answer")
        if not has_calls:  # the user scores this answer, also where it is the last one allowed
            return AgentState.INTERACTING
        return self._limit_met(data) or AgentState.PROCESSING_TOOLS

    async def _handle_processing_tools_state(self, data: AgentData) -> AgentState:
        turn, episode_tools = data.turns[-1], _open_tools(data)
        most = self._run_parts().plan.multi_turn.max_parallel_calls
        calls, rest = turn.reply.tool_calls[:most], turn.reply.tool_calls[most:]
        with simple_timer("tool_calls", data.timing):
            results = await asyncio.gather(*(self._call_tool(call, data) for call in calls))
        results += [too_many(call.name, call.arguments, most) for call in rest]
        data.messages += [
            Message("tool", result.text, tool_call_id=call.id, name=call.name)
            for call, result in zip(turn.reply.tool_calls, results, strict=True)
        ]
        undecoded = [episode_tools.undecoded(raw, turn_id=turn.id).text for raw in turn.undecoded]
        data.messages += self._undecoded_messages(data.messages, undecoded)
        data.user_turns += 1
        return AgentState.GENERATING

    async def _handle_interacting_state(self, data: AgentData) -> AgentState:
        user = data.interaction
        assert user is not None, "who interacts is there"
        messages = [message_value(message) for message in data.messages]
        with span("interaction", user.name, inputs=messages[-1]) as record:
            returned = await user.generate_response(data.request_id, messages, **data.interaction_kwargs)
            is_over, text, score = read_reply(returned, user.name)
            record.outputs = text
            record.turn_id = data.turns[-1].id
        if score is not None:
            data.turn_scores.append(score)
        if is_over:
            return _end(data, "user")
        if (ended := self._limit_met(data)) is not None:
            return ended
        data.messages.append(Message("user", text))
        data.user_turns += 1
        return AgentState.GENERATING

    async def _call_tool(self, call: ToolCall, data: AgentData) -> ToolResult:
        """What a tool answers; whatever goes wrong is its text."""
        return await _open_tools(data).call(call, turn_id=data.turns[-1].id)

    # ---- parts

    def _run_parts(self) -> LoopResources:
        run = self.trainer_config.run
        if not isinstance(run, LoopResources):
            raise UserError(f"{type(self).__name__} needs the tools of a run; play it as a workflow or by its name")
        return run

    def _check_format(self, plan: LoopPlan) -> None:
        own, wanted = self.tokenizer.text.parser.name, plan.multi_turn.format
        if wanted is not None and wanted.replace("-", "_") not in ("auto", own):
            raise UserError(
                f"rollout.multi_turn.format={wanted!r} is not how this model's calls are read ({own!r}); leave it "
                "out, or set model.tool_parser"
            )

    def _limit_met(self, data: AgentData) -> AgentState | None:
        """The end, if neither another answer nor a message before it is allowed. None: both are."""
        turns = self._run_parts().plan.multi_turn
        if turns.max_assistant_turns is not None and data.assistant_turns >= turns.max_assistant_turns:
            return _end(data, "max_assistant_turns")
        if turns.max_user_turns is not None and data.user_turns >= turns.max_user_turns:
            return _end(data, "max_user_turns")
        return None

    @asynccontextmanager
    async def _user(self, data: AgentData, run: LoopResources) -> AsyncIterator[None]:
        """The row's simulated user, for the length of the block; none where the row asks for none."""
        if not data.interaction_kwargs:
            yield
            return
        data.interaction = run.users.find(data.interaction_kwargs.get("name"))
        await data.interaction.start_interaction(data.request_id, **data.interaction_kwargs)
        try:
            yield
        finally:
            await data.interaction.finalize_interaction(data.request_id, **data.interaction_kwargs)

    def _count_prompt(self, data: AgentData) -> int:
        request = ChatRequest(
            tuple(data.messages),
            _open_tools(data).specs,
            template_kwargs=self.data_config.get("apply_chat_template_kwargs"),
        )
        return self.server_manager.session.count_prompt_tokens(request)

    def _room(self, data: AgentData) -> int | None:
        """Tokens that the response may still have before the next request. None: any number."""
        length = self._run_parts().plan.response_length
        if length is None:
            return None
        return length if not data.turns else length - (self._count_prompt(data) - data.num_first_prompt)

    def _undecoded_messages(self, before: Sequence[Message], texts: Sequence[str]) -> list[Message]:
        """The answer to calls that are none: as a tool's answers, where the template shows one without a
        call, else as the user's."""
        if not texts:
            return []
        answers = [Message("tool", text, tool_call_id=f"undecode{idx}") for idx, text in enumerate(texts)]
        try:
            self.tokenizer.text.template.render((*before, *answers))
        except AgentError:
            return [Message("user", "\n".join(texts))]
        return answers

    def _output(self, data: AgentData, episode_tools: EpisodeTools) -> AgentLoopOutput | list[AgentLoopOutput]:
        outputs = outputs_of(
            self.server_manager.session.snapshot(),
            data.turns,
            num_turns=1 + data.user_turns + data.assistant_turns,
            metrics=AgentLoopMetrics.model_validate(data.timing),
            extra_fields={
                **data.extra_fields,
                "tool_rewards": list(episode_tools.call_rewards),
                "tool_scores": dict(episode_tools.rewards),
                "turn_scores": data.turn_scores,
                "ended_by": data.ended_by,
                "truncated": data.is_truncated,
                "messages": [message_value(message) for message in data.messages],
                "metrics": episode_tools.metrics,
            },
        )
        return outputs if len(outputs) > 1 else outputs[0]


def _open_tools(data: AgentData) -> EpisodeTools:
    assert data.episode_tools is not None, "the tools are open while the trajectory runs"
    return data.episode_tools


def _end(data: AgentData, why: str) -> AgentState:
    data.ended_by = why
    return AgentState.TERMINATED


def _capped(params: Mapping[str, Any], room: int | None, own: int | None) -> dict[str, Any]:
    """The parameters, with no more tokens than there is room for. own: the run's limit of one answer."""
    if room is None:
        return dict(params)
    asked = [params.get(name) for name in ("max_tokens", "max_new_tokens")]
    caps = [cap for cap in (*asked, room) if cap is not None]
    if all(cap is None for cap in asked) and own is not None:
        caps.append(own)
    return {**{key: value for key, value in params.items() if key != "max_new_tokens"}, "max_tokens": min(caps)}
