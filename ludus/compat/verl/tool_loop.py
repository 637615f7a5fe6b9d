"""The loop of an agent with tools and, where the row asks for one, a simulated user.

Knows: turns, tools, limits.  Knows not: rewards' meaning, how tokens are matched.
Invariants: limits are checked before a request, so that no token is sampled in vain; every call gets a result, even if
it cannot be parsed, is of an unknown tool, or exceeds the limit.

    PENDING ─▶ GENERATING ─▶ PROCESSING_TOOLS ─▶ GENERATING …      calls, or what began as one
                   │   └────▶ INTERACTING ─────▶ GENERATING …      none, and there is a user
                   └────────▶ TERMINATED                           none, or a limit is met
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from ludus.agents.signatures import accepted
from ludus.agents.tools.answer import ToolLimits, read_answer
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.episode_tools import EpisodeTools, too_many, undecoded
from ludus.agents.tools.tool_set import ToolSet
from ludus.compat.verl.agent_data import AgentData, AgentState
from ludus.compat.verl.base import AgentLoopBase, simple_timer
from ludus.compat.verl.config_view import ToolListWrap
from ludus.compat.verl.function_tools import FunctionTool, as_ours, as_verls
from ludus.compat.verl.interaction import find_interaction, read_reply
from ludus.compat.verl.messages import message_value, read_messages, read_tools, undecoded_answers
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput, trajectory_of
from ludus.compat.verl.parser import FunctionCall, ToolParser
from ludus.compat.verl.resources import NO_LIMIT
from ludus.compat.verl.schemas import OpenAIFunctionCallSchema, OpenAIFunctionParsedSchema
from ludus.episodes.limits import LIMIT_CODES
from ludus.errors import AgentError, UserError
from ludus.runs.spans import span
from ludus.types import ChatRequest, ToolCall, ToolSpec, Turn


class ToolAgentLoop(AgentLoopBase):
    """Continues until the model makes no more tool calls. Subclass it to change a step.

    The model continues `prompt_ids` of the AgentData. As long as these equal the recorder's tokens for `messages`, the
    request contains the messages, so that they are recorded; if a user's own step or parser has changed them, it
    contains the tokens.
    """

    _playing: AgentData | None = None
    """What `run` plays. None: a `run` of the user's own keeps it to itself."""

    def __init__(self, *args: Any, tools: ToolListWrap | None = None, **kwargs: Any) -> None:
        """tools: None: those of the run."""
        super().__init__(*args, **kwargs)
        rollout, turns = self._rollout, self._rollout.multi_turn
        self.prompt_length = rollout.prompt_length or NO_LIMIT
        self.response_length = rollout.response_length or NO_LIMIT
        self.max_user_turns, self.max_assistant_turns = turns.max_user_turns, turns.max_assistant_turns
        self.max_parallel_calls = turns.max_parallel_calls
        self.max_tool_response_length = turns.max_tool_response_length or NO_LIMIT
        self.tool_response_truncate_side = turns.tool_response_truncate_side
        held = [as_verls(tool) for tool in self._resources().tool_set.tools] if tools is None else tools.tools
        self.tools = {tool.name: tool for tool in held}
        self.tool_schemas = _schemas(held)
        self.tool_parser = ToolParser.get_tool_parser(turns.format, self.tokenizer)
        self.tool_parser_name = turns.format or self.tool_parser.format

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """priority: not read: requests are served as they come."""
        data = AgentData(
            messages=[dict(message) for message in kwargs["raw_prompt"]],
            mm_processor_kwargs=self._get_mm_processor_kwargs(),
            tools_kwargs=kwargs.get("tools_kwargs") or {},
            interaction_kwargs=kwargs.get("interaction_kwargs") or {},
        )
        self._playing = data
        data._active_tools, data._active_tool_schemas = self.tools, self.tool_schemas
        selection = (kwargs.get("extra_info") or {}).get("tool_selection")
        if selection is not None:
            data._active_tools = {name: self.tools[name] for name in selection if name in self.tools}
            data._active_tool_schemas = _schemas(data._active_tools.values())
        unknown = [name for name in selection or () if name not in self.tools]
        async with _open_active(self, data, data.tools_kwargs, unknown) as data.episode_tools, self._user(data):
            state = AgentState.PENDING
            while state is not AgentState.TERMINATED:
                state = await self._step(state, data, sampling_params)
        return self._output(data)

    @staticmethod
    def _make_request_id(priority: int, full_determinism: bool) -> str:
        return f"det-{priority}" if full_determinism else uuid4().hex

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

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        """Raises UserError for a prompt that is longer than it may be: a part of it would say something else."""
        agent_data.prompt_ids = self._recorded_ids(agent_data)
        agent_data.recorded_ids = list(agent_data.prompt_ids)
        self._check_prompt(len(agent_data.prompt_ids))
        return AgentState.GENERATING

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        """ignore_termination: make the request even if there is no room left in the response."""
        data = agent_data
        try:
            goes_on = self._goes_on_with_messages(data)
            is_limited = self.response_length < NO_LIMIT
            room = self.response_length - len(data.response_mask) if is_limited else None
            if room is not None and room < 1:
                if not ignore_termination:
                    return _end(data, "response_length")
                room = None
            with simple_timer("generate_sequences", data.metrics):
                turn = await (self._ask if goes_on else self._ask_with_tokens)(data, sampling_params, room)
        except AgentError as error:
            if not data.assistant_turns or error.code not in LIMIT_CODES:
                raise
            return _end(data, error.code)
        if turn is None:
            return _end(data, "response_length")
        if data.tool_calls or data.undecoded:
            return self._limit_met(data) or AgentState.PROCESSING_TOOLS
        if turn.sampled.stop_reason == "length" and data.interaction is None:
            is_full = room is not None and len(turn.sampled.token_ids) >= room
            return _end(data, "response_length" if is_full else "max_new_tokens")
        # the user scores this answer, also where it is the last one allowed
        return _end(data, "answer") if data.interaction is None else AgentState.INTERACTING

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        data, most = agent_data, self.max_parallel_calls
        calls, rest = data.tool_calls[:most], data.tool_calls[most:]
        with simple_timer("tool_calls", data.metrics):
            answers = await asyncio.gather(*(self._called(call, data) for call in calls))
        results = [read_answer(answer) for answer in answers]
        data.tool_rewards += [result.reward for result in results if result.reward is not None]
        results += [too_many(call.name, call.arguments, most) for call in rest]
        new = [
            {"role": "tool", "content": result.text, "name": call.name, **_id_of(call, "tool_call_id")}
            for call, result in zip(data.tool_calls, results, strict=True)
        ]
        turn_id = self._turn_id(data)
        tell = undecoded if data.episode_tools is None else data.episode_tools.undecoded
        broken = [tell(raw, turn_id=turn_id).text for raw in data.undecoded]
        new += [message_value(message) for message in undecoded_answers(self.tokenizer.text.template, broken)]
        return await self._go_on(data, new)

    async def _handle_interacting_state(self, agent_data: AgentData) -> AgentState:
        data, user = agent_data, agent_data.interaction
        assert user is not None, "who interacts is there"
        messages = [message_value(message) for message in read_messages(data.messages)]
        with span("interaction", user.name, inputs=messages[-1]) as record:
            returned = await user.generate_response(data.request_id, messages, **data.interaction_kwargs)
            is_over, text, score = read_reply(returned, user.name)
            record.outputs = text
            record.turn_id = self._turn_id(data)
        if score is not None:
            data.turn_scores.append(score)
        if is_over:
            data.user_turns += 1  # a last word is one
            return _end(data, "user")
        if (ended := self._limit_met(data)) is not None:
            return ended
        return await self._go_on(data, [{"role": "user", "content": text}])

    async def _call_tool(
        self, tool_call: FunctionCall, tools_kwargs: Mapping[str, Any], agent_data: AgentData | None = None
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """What a tool answers, the reward of this call (0: it gave none) and its metrics; whatever goes wrong is the
        text.

        tools_kwargs: the tools were opened with them; where a `run` of the user's own has opened none, they are opened
        for this call.  agent_data: may be of a class of the user's own. None, as verl 0.6 calls it: what `run` plays.
        """
        agent_data = agent_data or self._playing
        call_id = getattr(tool_call, "tool_call_id", None) or uuid4().hex
        # verl does not take an empty text for a call without arguments, which our tools do
        call = ToolCall(call_id, tool_call.name, tool_call.arguments or " ")
        turn_id = self._turn_id(agent_data)
        if (opened := getattr(agent_data, "episode_tools", None)) is not None:
            result = await opened.call(call, turn_id=turn_id)
        else:
            async with _open_active(self, agent_data, tools_kwargs) as opened:
                result = await opened.call(call, turn_id=turn_id)
        return ToolResponse(text=result.text), result.reward or 0.0, dict(result.metrics)

    def _build_assistant_message(self, content: str, agent_data: AgentData) -> dict[str, Any]:
        """An answer whose calls were found in its tokens."""
        calls = []
        for call in agent_data.tool_calls:
            read, is_broken = OpenAIFunctionCallSchema.from_openai_function_parsed_schema(
                OpenAIFunctionParsedSchema(name=call.name, arguments=call.arguments)
            )
            function = {"name": call.name, "arguments": call.arguments if is_broken else read.arguments}
            calls.append({"type": "function", "function": function, **_id_of(call, "id")})
        return {"role": "assistant", "content": content or "", **({"tool_calls": calls} if calls else {})}

    # ---- parts

    async def _called(self, call: FunctionCall, data: AgentData) -> Any:
        """What `_call_tool` returns, which a user's class may have without `agent_data`, as in verl 0.6."""
        names = accepted(self._call_tool)
        if names is None or "agent_data" in names:
            return await self._call_tool(call, data.tools_kwargs, agent_data=data)
        if len(names) < 3:
            return await self._call_tool(call, data.tools_kwargs)
        return await self._call_tool(call, data.tools_kwargs, data)

    def _goes_on_with_messages(self, data: AgentData) -> bool:
        """Whether the model is asked with messages. Then `prompt_ids` are what the recorder makes of them, also where
        a step has changed them since."""
        parser, own = self.tool_parser, str(self._rollout.multi_turn.format or "auto").replace("-", "_")
        if type(parser) is not ToolParser or parser.format not in ("auto", own):
            return False
        ids = self._recorded_ids(data)
        if data.prompt_ids != data.recorded_ids:
            return ids == data.prompt_ids
        self._set_prompt(data, ids)
        return True

    async def _ask(self, data: AgentData, sampling_params: dict[str, Any], room: int | None) -> Turn:
        turn = await self.server_manager.complete(
            data.messages,
            tools=self._specs(data),
            sampling_params=sampling_params,
            room=room,
            template_kwargs=self.apply_chat_template_kwargs,
        )
        data.tool_calls = [
            FunctionCall(name=call.name, arguments=call.arguments, tool_call_id=call.id)
            for call in turn.reply.tool_calls
        ]
        data.undecoded = turn.undecoded
        await self._take(data, turn)
        data.recorded_ids = list(data.prompt_ids)
        data.messages.append(message_value(turn.reply))
        return turn

    async def _ask_with_tokens(self, data: AgentData, sampling_params: dict[str, Any], room: int | None) -> Turn | None:
        """None: there is no room."""
        params = dict(sampling_params)
        if stops := self.tool_parser.stop_token_ids:
            params["stop_token_ids"] = sorted({*(params.get("stop_token_ids") or ()), *stops})
        if room is not None:
            params["max_tokens"] = min(room, params.get("max_tokens") or room)
        output = await self.server_manager.generate(data.request_id, prompt_ids=data.prompt_ids, sampling_params=params)
        if output.turn is None:
            return None
        await self._take(data, output.turn)
        schemas = [tool.tool_schema for tool in getattr(data, "_active_tools", self.tools).values()]
        content, data.tool_calls = await self.tool_parser.extract_tool_calls(data.response_ids, schemas)
        data.undecoded = ()
        data.messages.append(self._build_assistant_message(content, data))
        return output.turn

    async def _take(self, data: AgentData, turn: Turn) -> None:
        """Append an answer to the prompt."""
        data.turns.append(turn)
        data.assistant_turns += 1
        data.response_ids = list(turn.sampled.token_ids)
        merged, data.response_mask, logprobs = await self.ct_merge_assistant_token(
            data.prompt_ids, data.response_ids, data.response_mask, data.response_logprobs, turn.sampled.logprobs
        )
        data.prompt_ids, data.response_logprobs = merged.token_ids, logprobs or []

    async def _go_on(self, data: AgentData, new: Sequence[Mapping[str, Any]]) -> AgentState:
        """Append new messages after the last answer; returns the next state."""
        before = list(data.messages)
        data.messages += map(dict, new)
        data.user_turns += 1
        if data.prompt_ids == data.recorded_ids:
            try:
                self._set_prompt(data, self._recorded_ids(data))
            except AgentError as error:
                if error.code not in LIMIT_CODES:
                    raise
                return _end(data, error.code)
            return AgentState.GENERATING
        merged, data.response_mask, logprobs = await self.ct_merge_context_msg(
            before,
            data.messages,
            data.prompt_ids,
            data.response_mask,
            data.response_logprobs or None,
            tools=self._active_schemas(data),
        )
        data.prompt_ids, data.response_logprobs = merged.token_ids, logprobs or []
        return AgentState.GENERATING

    def _set_prompt(self, data: AgentData, ids: list[int]) -> None:
        """Set the tokens with which the recorder continues: an extension of the earlier ones, or a new path."""
        num_known = len(data.prompt_ids)
        if data.assistant_turns and ids[:num_known] != data.prompt_ids:
            data.has_forked = True
            num_known = min(num_known - len(data.response_mask), len(ids))
            data.response_mask, data.response_logprobs = [], []
        if data.assistant_turns:
            data.response_mask = [*data.response_mask, *[0] * (len(ids) - num_known)]
            data.response_logprobs = [*data.response_logprobs, *[0.0] * (len(ids) - num_known)]
        data.prompt_ids, data.recorded_ids = ids, list(ids)

    def _recorded_ids(self, data: AgentData) -> list[int]:
        """The recorder's tokens for the next request. Raises AgentError as a request does."""
        request = ChatRequest(
            read_messages(data.messages), self._specs(data), template_kwargs=self.apply_chat_template_kwargs
        )
        return list(self.server_manager.session.prompt_ids(request))

    def _output(self, data: AgentData) -> AgentLoopOutput | list[AgentLoopOutput]:
        """The tokens with their mask; where the recorder had to begin a path of its own, one output for each."""
        record = self.server_manager.session.snapshot()
        if not record.turns:
            raise UserError("the loop never asked the model")
        num_first = len(data.prompt_ids) - len(data.response_mask)
        own = {
            "prompt_ids": data.prompt_ids[:num_first],
            "response_ids": data.prompt_ids[num_first:],
            "response_mask": data.response_mask,
            "response_logprobs": data.response_logprobs or None,
        }
        return trajectory_of(
            record,
            data.turns or record.turns,
            read_messages(data.messages),
            data.episode_tools,
            own=None if data.has_forked else own,
            ended_by=data.ended_by,
            num_turns=1 + data.user_turns + data.assistant_turns,
            metrics=AgentLoopMetrics.model_validate(data.metrics),
            extra_fields={
                **data.extra_fields,
                "turn_scores": data.turn_scores,
                "tool_rewards": data.tool_rewards,
                "metrics": {} if data.episode_tools is None else data.episode_tools.metrics,
            },
        )

    def _active_schemas(self, data: AgentData) -> list[dict[str, Any]]:
        schemas: list[dict[str, Any]] = getattr(data, "_active_tool_schemas", self.tool_schemas)
        return schemas

    def _specs(self, data: AgentData) -> tuple[ToolSpec, ...]:
        return read_tools(self._active_schemas(data)) if data.episode_tools is None else data.episode_tools.specs

    def _turn_id(self, data: AgentData | None) -> str | None:
        """Of the last answer. None: the model was not asked yet."""
        turns = getattr(data, "turns", ()) or self.server_manager.session.snapshot().turns
        return turns[-1].id if turns else None

    def _limit_met(self, data: AgentData) -> AgentState | None:
        """TERMINATED if no further answer, or no message before it, is allowed. None: both are."""
        for name, most in (("assistant_turns", self.max_assistant_turns), ("user_turns", self.max_user_turns)):
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


def _open_active(
    loop: ToolAgentLoop, data: Any, tools_kwargs: Mapping[str, Any], unknown: Sequence[str] = ()
) -> EpisodeTools:
    """The active tools, those of the run and the loop's own.

    loop: of it is read what verl's `_call_tool` reads, which tests call on stand-ins; one without a tokenizer belongs
    to no run, and its tools' answers are cut to characters.
    unknown: names that the row selects and nobody has.
    """
    active = getattr(data, "_active_tools", loop.tools)
    longest = None if loop.max_tool_response_length >= NO_LIMIT else loop.max_tool_response_length
    side = loop.tool_response_truncate_side
    tokenizer = getattr(loop, "tokenizer", None)
    if tokenizer is None:
        own = [as_ours(tool) for tool in active.values()]
        return ToolSet((), ToolLimits(max_response_length=longest, truncate_side=side)).open(
            tools_kwargs, agent_data=data, own=own
        )
    tool_set = loop._resources().tool_set
    of_run = {tool.name for tool in tool_set.tools}
    return tool_set.open(
        tools_kwargs,
        [*(name for name in active if name in of_run), *unknown],
        tokenizer=tokenizer.text.tokenizer,
        agent_data=data,
        own=[as_ours(tool) for name, tool in active.items() if name not in of_run],
        limits=ToolLimits(max_response_tokens=longest, truncate_side=side),
    )


def _schemas(tools: Iterable[BaseTool | FunctionTool]) -> list[dict[str, Any]]:
    """The tools as a chat template is shown them."""
    schemas = (tool.tool_schema for tool in tools)
    return [schema.model_dump(exclude_unset=True, exclude_none=True) for schema in schemas if schema is not None]


def _id_of(call: FunctionCall, name: str) -> dict[str, Any]:
    """The fields with a call's id; none if the model's format has no ids."""
    return {} if call.tool_call_id is None else {name: call.tool_call_id}


def _end(data: AgentData, why: str) -> AgentState:
    data.ended_by = why
    return AgentState.TERMINATED
