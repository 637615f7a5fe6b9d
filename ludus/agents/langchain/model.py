"""A LangChain chat model whose answers are recorded turns, so that any graph which uses it can be trained.

Knows: LangChain's interface, a recorded session.  Knows not: graphs, rewards, tokens.
Invariants: every answer is a turn of the session, even one that the graph discarded; an answer has the id of its turn;
if a stream is aborted, the tokens sampled so far are recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ConfigDict, Field, PrivateAttr

from ludus.agents.adapter import current_episode
from ludus.agents.langchain.messages import REASONING, response_metadata, to_ai_message, usage_of
from ludus.agents.langchain.request import to_request
from ludus.episodes.session import Session
from ludus.errors import AgentError, UserError
from ludus.processes.blocking import run_blocking, stream_blocking
from ludus.text.parsers.base import ContentDelta, Delta, ReasoningDelta
from ludus.types import ChatRequest, Turn

Method = Literal["json_schema", "function_calling", "json_mode"]


class MaxTokenExceededError(AgentError):
    """The model's `response_length` is exhausted."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="token_limit")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,)


class ChatModel(BaseChatModel):
    """The model of the current episode, or of a given session."""

    model_config = ConfigDict(populate_by_name=True, extra="forbid", arbitrary_types_allowed=True)

    model_name: str = Field(default="default", alias="model")
    """The model to ask, by any name that a request may use (`default`, BASE, NAME@12), or by the client's own name."""
    client: Any = Field(default=None, exclude=True, repr=False)
    """A recorded session, or an object with attributes `session` and `model_names` (its names for the model). None: the
    session of the current episode."""
    agent: str = ""
    """Tag of the asking agent, if a graph has several; '' is the main agent."""
    temperature: float | None = None
    """None, here and below: the run's value (`gconfig`)."""
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Most tokens of one answer; `rollout.max_tokens` limits a whole episode."""
    response_length: int | None = Field(default=None, ge=1)
    """Most tokens after the first prompt given to this object, whoever wrote them. None: no limit."""
    max_parallel_calls: int | None = Field(default=None, ge=1)
    """1: an answer ends after its first call. Larger limits are up to the node that runs the tools. None: no limit."""
    tool_parser: str | None = None
    """None: the run's. Any other is an error: the format of calls belongs to the model."""
    tokenizer: Any = Field(default=None, exclude=True, repr=False)
    """Accepted and ignored: the session has the model's own tokenizer."""
    cache: Any = Field(default=False, exclude=True)
    """Off: an answer from LangChain's cache would not have been sampled."""

    _first_prompt: int | None = PrivateAttr(default=None)
    """Length of the first prompt, if `response_length` is set. None: nothing was asked yet."""

    @property
    def _llm_type(self) -> str:
        return "ludus"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model_name": self.model_name, **self._sampling()}

    @property
    def session(self) -> Session:
        """The session to ask. Raises UserError if there is none, or if it is of another kind."""
        found = self.client
        if found is None:
            episode = current_episode()
            found = None if episode is None else episode.session
        elif not isinstance(found, Session):
            found = getattr(found, "session", None)  # an agent loop's server manager, a client of `open_gateway`
        if not isinstance(found, Session):
            raise UserError(
                "ChatModel has no session to ask: use it inside an episode that plays in this process, or pass "
                f"client=… a recorded session or what has one as `session`; got client={self.client!r:.200}"
            )
        if self.tool_parser not in (None, "auto", found.text.parser.name):
            raise UserError(
                f"tool_parser={self.tool_parser!r} is not how this model's calls are read "
                f"({found.text.parser.name!r}); leave it out, or set model.tool_parser for the run"
            )
        return found

    async def _asked(self) -> Session:
        """The session that answers. Raises AgentError for an unknown model."""
        session, called = self.session, getattr(self.client, "model_names", ())
        return session if self.model_name in called else await session.named(self.model_name)

    # ---- binding

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with these tools. strict: constrain the arguments of calls to their schema while sampling."""
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        bound = [convert_to_openai_tool(tool, strict=strict) for tool in tools]  # with their whole schema
        return self.bind(tools=bound, **choice, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Method = "json_schema",
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """The model whose answers are objects of `schema`: a pydantic class, a TypedDict or a JSON schema.

        method: `json_schema` constrains the answer to the schema while it is sampled, `json_mode` to any JSON object;
        `function_calling` makes the model call a tool with that schema.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        kwargs.pop("strict", None)  # an answer is held to its schema in any case
        if kwargs or method not in ("json_schema", "json_mode"):
            raise UserError(
                f"with_structured_output got method={method!r} and {sorted(kwargs)}; allowed: method='json_schema', "
                "'json_mode' or 'function_calling', and include_raw"
            )
        wanted: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            json_schema = convert_to_json_schema(schema)
            wanted = {"type": "json_schema", "json_schema": {"name": json_schema["title"], "schema": json_schema}}
        answer = self.bind(response_format=wanted)
        parser: Runnable[Any, Any] = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser(pydantic_object=schema)
        if not include_raw:
            return answer | parser
        parsed = RunnablePassthrough.assign(
            parsed=(lambda both: both["raw"]) | parser, parsing_error=lambda _: None
        ).with_fallbacks([RunnablePassthrough.assign(parsed=lambda _: None)], exception_key="parsing_error")
        return RunnableMap(raw=answer) | parsed

    # ---- answering

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        session = await self._asked()
        (turn,) = await session.complete(self._request(session, messages, stop, kwargs))
        return self._result(session, turn)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return run_blocking(self._agenerate(messages, stop, **kwargs))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self._chunks(messages, stop, kwargs)) as chunks:
            async for message in chunks:
                chunk = ChatGenerationChunk(message=message)
                if run_manager is not None and chunk.text:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for message in stream_blocking(lambda: self._chunks(messages, stop, kwargs)):
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None and chunk.text:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _chunks(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]
    ) -> AsyncGenerator[AIMessageChunk, None]:
        """Text as it is sampled. Calls come at the end, complete, because a beginning call may turn out to be text."""
        session = await self._asked()
        request = self._request(session, messages, stop, kwargs)
        told: asyncio.Queue[Delta | None] = asyncio.Queue()
        ids: list[str] = []
        answering = asyncio.ensure_future(
            session.complete(
                request,
                lambda _, delta: told.put_nowait(delta),
                on_start=lambda turn_ids, _: ids.extend(turn_ids),
            )
        )
        answering.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (delta := await told.get()) is not None:
                match delta:
                    case ContentDelta(text) if text:
                        yield AIMessageChunk(content=text, id=ids[0])
                    case ReasoningDelta(text):
                        yield AIMessageChunk(content="", id=ids[0], additional_kwargs={REASONING: text})
            (turn,) = await answering
            yield AIMessageChunk(
                content="",
                id=turn.id,
                tool_call_chunks=[
                    tool_call_chunk(name=call.name, args=call.arguments, id=call.id, index=idx)
                    for idx, call in enumerate(turn.reply.tool_calls)
                ],
                response_metadata=response_metadata(turn, self.model_name),
                usage_metadata=usage_of(turn, session.num_prompt_tokens(turn)),
                chunk_position="last",
            )
        finally:
            answering.cancel()
            await asyncio.wait({answering})  # the tokens sampled until now are in the record

    def _request(
        self, session: Session, messages: list[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]
    ) -> ChatRequest:
        asked = {**self._sampling(), **kwargs}
        if self.max_parallel_calls == 1:
            asked.setdefault("parallel_tool_calls", False)
        request = to_request(messages, asked, defaults=session.sampling, stop=stop, agent=self.agent)
        if self.response_length is None:
            return request
        num_prompt = session.count_prompt_tokens(request)
        if self._first_prompt is None:
            self._first_prompt = num_prompt
        room = self.response_length - max(0, num_prompt - self._first_prompt)
        if room < 1:
            raise MaxTokenExceededError(f"the {self.response_length} tokens of this response are used up")
        most = request.sampling.max_new_tokens
        sampling = replace(request.sampling, max_new_tokens=room if most is None else min(room, most))
        return replace(request, sampling=sampling)

    def _sampling(self) -> dict[str, Any]:
        """This object's sampling parameters; those of a call override them."""
        names = ("temperature", "top_p", "repetition_penalty", "max_tokens")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _result(self, session: Session, turn: Turn) -> ChatResult:
        message = to_ai_message(turn, num_prompt_tokens=session.num_prompt_tokens(turn), model_name=self.model_name)
        return ChatResult(generations=[ChatGeneration(message=message)])
