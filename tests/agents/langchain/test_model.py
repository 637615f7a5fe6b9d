"""ChatModel: what LangChain's users do with a chat model, and that each answer is a recorded turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel

from ludus.agents.adapter import EpisodeContext
from ludus.agents.langchain import ChatModel
from ludus.episodes.limits import Limits
from ludus.errors import AgentError, UserError
from tests.agents.langchain.conftest import OpenSession
from tests.frameworks.calculator import ADDED, ANSWER, BOTH, QUESTION, REPLIES
from tests.frameworks.checker import check_path, check_record


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


TOOLS = {"add": add, "multiply": multiply}


class Guess(BaseModel):
    number: int


class GuessDict(TypedDict):
    number: int


def results(message: AIMessage) -> list[BaseMessage]:
    return [TOOLS[call["name"]].invoke(call) for call in message.tool_calls]


def joined(chunks: Sequence[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


async def ask_async(model: Any, messages: Any) -> AIMessage:
    return await model.ainvoke(messages)


async def ask_blocking(model: Any, messages: Any) -> AIMessage:
    return model.invoke(messages)


async def ask_in_a_thread(model: Any, messages: Any) -> AIMessage:
    return await asyncio.to_thread(model.invoke, messages)


async def ask_streaming(model: Any, messages: Any) -> AIMessage:
    return joined([chunk async for chunk in model.astream(messages)])


async def ask_streaming_blocking(model: Any, messages: Any) -> AIMessage:
    return joined(list(model.stream(messages)))


@pytest.mark.parametrize("ask", [ask_async, ask_blocking, ask_in_a_thread, ask_streaming, ask_streaming_blocking])
def test_a_conversation_with_tools(open_session: OpenSession, ask: Any) -> None:
    """However it is asked, a growing conversation is one path of tokens, and its answers say the same."""
    served = open_session(REPLIES)
    model = ChatModel(client=served.session).bind_tools([add, multiply])

    async def main() -> list[BaseMessage]:
        messages: list[BaseMessage] = [HumanMessage(QUESTION)]
        for _ in REPLIES:
            answer = await ask(model, messages)
            messages += [answer, *results(answer)]
        return messages

    messages = asyncio.run(main())
    assert messages[-1].content == ANSWER
    check_path(served, REPLIES, ADDED)
    first, turn = messages[1], served.session.snapshot().turns[0]
    assert isinstance(first, AIMessage)
    assert (first.id, first.content) == (turn.id, "First the sum and the product.")
    assert first.tool_calls == [
        {"name": "add", "args": {"a": 17, "b": 25}, "id": turn.reply.tool_calls[0].id, "type": "tool_call"},
        {"name": "multiply", "args": {"a": 17, "b": 25}, "id": turn.reply.tool_calls[1].id, "type": "tool_call"},
    ]
    assert first.response_metadata["finish_reason"] == "tool_calls"
    assert first.usage_metadata is not None
    assert first.usage_metadata["output_tokens"] == len(turn.sampled.token_ids)
    assert first.usage_metadata["input_tokens"] == len(served.engine.calls[0].prompt_ids)


def test_text_is_streamed_as_it_is_sampled(open_session: OpenSession) -> None:
    """The first text arrives before the last token is sampled, and a call of a tool arrives whole."""
    served = open_session([BOTH], token_delay_s=0.001)
    model = ChatModel(client=served.session).bind_tools([add, multiply])

    async def main() -> list[Any]:
        seen = []
        async for chunk in model.astream(QUESTION):
            seen.append((chunk.content, len(chunk.tool_call_chunks), served.session.stats().num_running))
        return seen

    *texts, last = asyncio.run(main())
    assert len(texts) > 3 and all(num_calls == 0 for _, num_calls, _ in texts)
    assert texts[0][2] == 1  # the answer was still in flight
    assert last[1] == 2


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_stream_that_is_broken_off(open_session: OpenSession, is_blocking: bool) -> None:
    """The tokens that were sampled until then are an aborted turn, and nothing runs on."""
    served = open_session(["one two three four five six seven eight nine ten"], token_delay_s=0.002)
    model = ChatModel(client=served.session)

    async def main() -> None:
        stream = model.astream("Count.")
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    if is_blocking:
        stream = model.stream("Count.")
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    else:
        asyncio.run(main())
    (turn,) = check_record(served).turns
    assert (turn.sampled.stop_reason, turn.abort_cause) == ("abort", "client_cancel")
    assert 0 < len(turn.sampled.token_ids) < len(served.text.tokenizer.encode("one two three four five six seven"))


def test_the_same_asked_twice_is_two_samples(open_session: OpenSession) -> None:
    """A node that is run again samples again, and both answers are kept."""
    served = open_session(["No.", "Yes."])
    model = ChatModel(client=served.session)
    assert [model.invoke("Well?").content for _ in range(2)] == ["No.", "Yes."]
    first, second = check_record(served).turns
    assert first.sampling.seed != second.sampling.seed
    assert (second.prefix, second.follows) == (None, None)


@pytest.mark.parametrize("schema", [Guess, GuessDict, {**Guess.model_json_schema(), "description": "A guess."}])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(open_session: OpenSession, schema: Any, method: Any) -> None:
    """The answer is held to the schema while it is sampled, and comes back as what the schema describes."""
    name = schema["title"] if isinstance(schema, dict) else schema.__name__
    called = f'<tool_call>\n{{"name": "{name}", "arguments": {{"number":7}}}}\n</tool_call>'
    served = open_session([called if method == "function_calling" else '{"number":7}'])
    answer = ChatModel(client=served.session).with_structured_output(schema, method=method).invoke("Guess.")
    assert answer == (Guess(number=7) if schema is Guess else {"number": 7})
    assert served.session.snapshot().turns[0].sampling.grammar is not None


def test_structured_output_with_what_was_sampled(open_session: OpenSession) -> None:
    """`include_raw` gives the message too, and an answer that ended early is an error that is told, not raised."""
    served = open_session(['{"number":7}', '{"number":7}'])
    whole, cut = (
        ChatModel(client=served.session, max_tokens=most)
        .with_structured_output(Guess, include_raw=True)
        .invoke("Guess.")
        for most in (None, 2)
    )
    assert whole["parsed"] == Guess(number=7) and whole["parsing_error"] is None
    assert whole["raw"].id == served.session.snapshot().turns[0].id
    assert cut["parsed"] is None and cut["parsing_error"] is not None


def test_json_mode(open_session: OpenSession) -> None:
    """Any JSON object will do."""
    served = open_session(['{"a":[1]}'])
    assert ChatModel(client=served.session).with_structured_output(
        Guess.model_json_schema(), method="json_mode"
    ).invoke("?") == {"a": [1]}


def test_tools_keep_their_whole_schema(open_session: OpenSession) -> None:
    """Items, nested properties and defaults reach the prompt."""

    @tool
    def search(words: list[str], limit: int = 3, where: dict[str, int] | None = None) -> str:
        """Search."""
        return ""

    served = open_session(["Nothing."])
    ChatModel(client=served.session).bind_tools([search]).invoke("Search.")
    prompt = served.text.tokenizer.decode(served.engine.calls[0].prompt_ids)
    assert '"items": {"type": "string"}' in prompt and '"default": 3' in prompt
    assert '"additionalProperties": {"type": "integer"}' in prompt


def test_sampling(open_session: OpenSession) -> None:
    """What the call says goes before what the model says, and both before the run's; an agent loop's dict counts."""
    served = open_session(lambda call: "Yes.")
    model = ChatModel(client=served.session, top_p=0.9, max_tokens=5)
    model.invoke("?", sampling_params={"top_k": -1, "top_p": 0.8, "logprobs": True}, stop=["."])
    model.invoke("?", temperature=0.1, max_tokens=2)
    first, second = (call.sampling for call in served.engine.calls)
    assert (first.temperature, first.top_p, first.top_k, first.max_new_tokens) == (0.7, 0.9, 0, 5)
    assert first.stop == (".",)
    assert (second.temperature, second.top_p, second.max_new_tokens) == (0.1, 0.9, 2)


def test_one_call_at_a_time(open_session: OpenSession) -> None:
    """`max_parallel_calls=1` ends an answer after its first call."""
    served = open_session([BOTH])
    answer = ChatModel(client=served.session, max_parallel_calls=1).bind_tools([add, multiply]).invoke(QUESTION)
    assert [call["name"] for call in answer.tool_calls] == ["add"]


@pytest.mark.parametrize(
    ("choice", "forced"), [("any", None), ("required", None), ("multiply", "multiply"), (True, None)]
)
def test_a_call_can_be_forced(open_session: OpenSession, choice: Any, forced: str | None) -> None:
    """`tool_choice` acts: the answer is held to a call."""
    called = '<tool_call>\n{"name": "multiply", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    served = open_session([called])
    answer = ChatModel(client=served.session).bind_tools([add, multiply], tool_choice=choice).invoke(QUESTION)
    assert [call["name"] for call in answer.tool_calls] == ["multiply"]
    assert served.engine.calls[0].sampling.grammar is not None


def test_a_call_that_cannot_be_read(open_session: OpenSession) -> None:
    """It is text, and the message says that it was to be a call."""
    broken = '<tool_call>\n{"name": "add", "arguments": {"a": \n</tool_call>'
    served = open_session([broken, broken])
    model = ChatModel(client=served.session).bind_tools([add])
    for answer in (model.invoke(QUESTION), joined(list(model.stream(QUESTION)))):
        assert answer.content == broken and not answer.tool_calls
        assert answer.response_metadata["undecoded_tool_calls"] == [broken]


def test_messages_of_all_kinds(open_session: OpenSession) -> None:
    """Parts of text are joined, roles keep their names, and thinking stays beside the text."""
    served = open_session(["Yes."])
    ChatModel(client=served.session).invoke(
        [
            SystemMessage("Be brief."),
            SystemMessage("Be kind.", additional_kwargs={"__openai_role__": "developer"}),
            HumanMessage([{"type": "text", "text": "Is it "}, "so?"]),
            AIMessage("No.", additional_kwargs={"reasoning_content": "Hm."}),
            ChatMessage("Really?", role="user"),
        ]
    )
    messages = served.session.snapshot().turns[0].messages
    assert [message.role for message in messages] == ["system", "developer", "user", "assistant", "user"]
    assert [message.content for message in messages] == ["Be brief.", "Be kind.", "Is it so?", "No.", "Really?"]
    assert messages[3].reasoning == "Hm."


@pytest.mark.parametrize(
    "message",
    [
        FunctionMessage("1", name="add"),
        ChatMessage("?", role="judge"),
        HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}]),
        ToolMessage([{"type": "image", "url": "x"}], tool_call_id="1"),
    ],
)
def test_messages_without_a_place(open_session: OpenSession, message: BaseMessage) -> None:
    """What the model cannot read is an error, and never dropped."""
    with pytest.raises(UserError, match=type(message).__name__):
        ChatModel(client=open_session([]).session).invoke([message])


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"temprature": 1.0}, "did you mean 'temperature'"),
        ({"tool_choice": 3}, "tool_choice=3"),
        ({"sampling_params": {"beam_width": 2}}, "beam_width"),
    ],
)
def test_unknown_arguments(open_session: OpenSession, kwargs: Any, words: str) -> None:
    """Nothing that was asked for is silently left out."""
    with pytest.raises(UserError, match=words):
        ChatModel(client=open_session([]).session).invoke("?", **kwargs)


def test_values_out_of_range(open_session: OpenSession) -> None:
    """They are refused as the gateway refuses them."""
    with pytest.raises(AgentError, match="temperature"):
        ChatModel(client=open_session([]).session, temperature=-1.0).invoke("?")


def test_limits_reach_the_graph(open_session: OpenSession) -> None:
    """A limit of the episode is an error with its code, in every form of asking."""
    served = open_session(["Yes."], limits=Limits(max_turns=1))
    model = ChatModel(client=served.session)
    model.invoke("?")
    for ask in (ask_async, ask_blocking, ask_streaming, ask_streaming_blocking):
        with pytest.raises(AgentError) as error:
            asyncio.run(ask(model, "And now?"))
        assert error.value.code == "turn_limit"


def test_the_session_of_the_episode(open_session: OpenSession) -> None:
    """Without a client it is the one of the episode that is playing, in threads that the graph begins too."""
    served = open_session(["One.", "Two."])
    model = ChatModel()
    with pytest.raises(UserError, match="no session"):
        model.invoke("?")

    async def main() -> tuple[str, str]:
        with EpisodeContext("", "", None, served.session).entered():
            return (await ask_async(model, "?")).text, (await ask_in_a_thread(model, "?")).text

    assert asyncio.run(main()) == ("One.", "Two.")


def test_another_parser_than_the_models(open_session: OpenSession) -> None:
    """How calls are written cannot be chosen against the run."""
    served = open_session(["Yes."])
    assert ChatModel(client=served.session, tool_parser="hermes", tokenizer=object()).invoke("?").content == "Yes."
    with pytest.raises(UserError, match="tool_parser='gpt-oss'"):
        ChatModel(client=served.session, tool_parser="gpt-oss").invoke("?")


def test_a_graph_that_streams(open_session: OpenSession) -> None:
    """LangGraph's own streams of messages tell the answers piece by piece, from nodes that await and nodes that block,
    and a call with its arguments."""
    served = open_session([BOTH, *REPLIES[1:]], token_delay_s=0.001)
    model = ChatModel(client=served.session).bind_tools([add, multiply])

    async def agent(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def blocking_agent(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent).add_node("tools", ToolNode([add, multiply])).add_node("again", blocking_agent)
    graph.add_edge(START, "agent").add_edge("agent", "tools").add_edge("tools", "again")

    async def main() -> list[tuple[Any, str]]:
        stream = graph.compile().astream({"messages": [HumanMessage(QUESTION)]}, stream_mode="messages")
        return [(chunk, info["langgraph_node"]) async for chunk, info in stream]

    said = asyncio.run(main())
    first, second = served.session.snapshot().turns
    for turn, node in ((first, "agent"), (second, "again")):
        chunks = [chunk for chunk, where in said if where == node]
        whole = joined(chunks)
        assert len(chunks) > (3 if turn is first else 0)
        assert (whole.id, whole.content) == (turn.id, turn.reply.content or "")
        assert [call["name"] for call in whole.tool_calls] == [call.name for call in turn.reply.tool_calls]
