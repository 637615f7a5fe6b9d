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
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import uuid4

from ludus.agents.tools.answer import ToolResult, read_answer
from ludus.agents.tools.episode_tools import EpisodeTools, too_many
from ludus.compat.verl.base import AgentLoopBase, simple_timer
from ludus.compat.verl.interaction import BaseInteraction, find_interaction, read_reply
from ludus.compat.verl.messages import message_value, read_messages, undecoded_answers
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput, trajectory_of
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
    episode_tools: EpisodeTools = field(init=False)
    """Open while the trajectory runs."""
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


class ToolAgentLoop(AgentLoopBase):
    """Answers until it calls no more tools. Derive from it to change a step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """What verl's own keeps of the configuration is there, for steps of your own to read."""
        super().__init__(*args, **kwargs)
        rollout, turns = self._rollout, self._rollout.multi_turn
        self.prompt_length, self.response_length = rollout.prompt_length, rollout.response_length
        self.max_user_turns, self.max_assistant_turns = turns.max_user_turns, turns.max_assistant_turns
        self.max_parallel_calls = turns.max_parallel_calls
        self.max_tool_response_length = turns.max_tool_response_length
        self.tool_response_truncate_side = turns.tool_response_truncate_side

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        data = AgentData(
            messages=list(read_messages(kwargs["raw_prompt"])),
            tools_kwargs=kwargs.get("tools_kwargs") or {},
            interaction_kwargs=kwargs.get("interaction_kwargs") or {},
        )
        async with self.open_tools(data, **kwargs) as data.episode_tools, self._user(data):
            state = AgentState.PENDING
            while state is not AgentState.TERMINATED:
                state = await self._step(state, data, sampling_params)
        return trajectory_of(
            self.server_manager.session.snapshot(),
            data.turns,
            data.messages,
            data.episode_tools,
            ended_by=data.ended_by,
            num_turns=1 + data.user_turns + data.assistant_turns,
            metrics=AgentLoopMetrics.model_validate(data.timing),
            extra_fields={
                **data.extra_fields,
                "turn_scores": data.turn_scores,
                "metrics": data.episode_tools.metrics,
            },
        )

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
        length = self._rollout.prompt_length
        data.num_first_prompt = self._count_prompt(data)
        if length is not None and data.num_first_prompt > length:
            raise UserError(
                f"the prompt has {data.num_first_prompt} tokens, tools included, and rollout.prompt_length="
                f"{length}; raise it, or leave the row out"
            )
        return AgentState.GENERATING

    async def _handle_generating_state(
        self, data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        """ignore_termination: the model is asked where the response is full, too."""
        try:
            room = self._room(data)
            if room is not None and room < 1 and not ignore_termination:
                return _end(data, "response_length")
            with simple_timer("generate_sequences", data.timing):
                turn = await self.server_manager.complete(
                    data.messages,
                    tools=data.episode_tools.specs,
                    sampling_params=sampling_params,
                    room=room,
                    template_kwargs=self.data_config.get("apply_chat_template_kwargs"),
                )
        except AgentError as error:
            if not data.turns or error.code not in LIMIT_CODES:
                raise
            return _end(data, error.code)
        data.turns.append(turn)
        data.messages.append(turn.reply)
        if turn.reply.tool_calls or turn.undecoded:
            return self._limit_met(data) or AgentState.PROCESSING_TOOLS
        if turn.sampled.stop_reason == "length" and data.interaction is None:
            is_full = room is not None and len(turn.sampled.token_ids) >= room
            return _end(data, "response_length" if is_full else "max_new_tokens")
        # the user scores this answer, also where it is the last one allowed
        return _end(data, "answer") if data.interaction is None else AgentState.INTERACTING

    async def _handle_processing_tools_state(self, data: AgentData) -> AgentState:
        turn, episode_tools = data.turns[-1], data.episode_tools
        most = self._rollout.multi_turn.max_parallel_calls
        calls, rest = turn.reply.tool_calls[:most], turn.reply.tool_calls[most:]
        with simple_timer("tool_calls", data.timing):
            answers = await asyncio.gather(*(self._call_tool(call, data.tools_kwargs, data) for call in calls))
        results = [answer if isinstance(answer, ToolResult) else read_answer(answer) for answer in answers]
        results += [too_many(call.name, call.arguments, most) for call in rest]
        data.messages += [
            Message("tool", result.text, tool_call_id=call.id, name=call.name)
            for call, result in zip(turn.reply.tool_calls, results, strict=True)
        ]
        undecoded = [episode_tools.undecoded(raw, turn_id=turn.id).text for raw in turn.undecoded]
        data.messages += undecoded_answers(self.tokenizer.text.template, undecoded)
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
            data.user_turns += 1  # a last word is one
            return _end(data, "user")
        if (ended := self._limit_met(data)) is not None:
            return ended
        data.messages.append(Message("user", text))
        data.user_turns += 1
        return AgentState.GENERATING

    async def _call_tool(
        self,
        call: ToolCall,
        tools_kwargs: Mapping[str, Any],  # verl's signature; the opened tools have them
        data: AgentData,
    ) -> ToolResult | tuple[Any, ...]:
        """What a tool answers; whatever goes wrong is its text. One that is derived may return verl's tuple of a
        ToolResponse, a reward and metrics, which goes on as it is."""
        return await data.episode_tools.call(call, turn_id=data.turns[-1].id)

    # ---- parts

    def _limit_met(self, data: AgentData) -> AgentState | None:
        """The end, if neither another answer nor a message before it is allowed. None: both are."""
        for name in ("assistant_turns", "user_turns"):
            most = getattr(self._rollout.multi_turn, f"max_{name}")
            if most is not None and getattr(data, name) >= most:
                return _end(data, f"max_{name}")
        return None

    @asynccontextmanager
    async def _user(self, data: AgentData) -> AsyncIterator[None]:
        """The row's simulated user, for the length of the block; none where the row asks for none, or the run has no
        file of them: verl's GSM8K rows ask for one in any case."""
        users = self._resources().users
        if not data.interaction_kwargs or not users:
            yield
            return
        data.interaction = find_interaction(users, data.interaction_kwargs.get("name"))
        await data.interaction.start_interaction(data.request_id, **data.interaction_kwargs)
        try:
            yield
        finally:
            await data.interaction.finalize_interaction(data.request_id, **data.interaction_kwargs)

    def _count_prompt(self, data: AgentData) -> int:
        template_kwargs = self.data_config.get("apply_chat_template_kwargs")
        request = ChatRequest(tuple(data.messages), data.episode_tools.specs, template_kwargs=template_kwargs)
        return self.server_manager.session.count_prompt_tokens(request)

    def _room(self, data: AgentData) -> int | None:
        """Tokens that the response may still have before the next request. None: any number."""
        length = self._rollout.response_length
        if length is None:
            return None
        return length if not data.turns else length - (self._count_prompt(data) - data.num_first_prompt)


def _end(data: AgentData, why: str) -> AgentState:
    data.ended_by = why
    return AgentState.TERMINATED
