"""ReactAgentLoop: graphs as agents, played by the adapter of agent loops over written answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import RetryPolicy

from ludus.agents.langchain import ChatModel
from ludus.compat.config import Config
from ludus.compat.verl.graph_loop import ReactAgentLoop, convert_to_agent_output
from ludus.compat.verl.settings import MultiTurnSettings
from ludus.episodes.limits import Limits
from ludus.errors import UserError
from ludus.text.chat import ChatText
from tests.compat.verl.conftest import Player, ReplayResult, configured
from tests.frameworks.calculator import ANSWER, BOTH, QUESTION, REPLIES

ROW = {"prompt": [{"role": "user", "content": QUESTION}], "data_source": "math"}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


class Calculator(ReactAgentLoop):
    """The loop that most derive: tools, and what the last answer is worth."""

    tools = (add, multiply)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        output = await super().run(sampling_params, **kwargs)
        (output[-1] if isinstance(output, list) else output).reward_score = 1.0
        return output


@pytest.fixture
def play(tokenizer_folder: Path) -> Callable[..., ReplayResult]:
    return Player(ChatText.load(tokenizer_folder, chat_template="chatml-tools"))


def plan(**turns: Any) -> Config:
    return configured(multi_turn=MultiTurnSettings(**{"max_parallel_calls": 4, **turns}))


def one_path(played: ReplayResult) -> bool:
    turns = played.record.turns
    return [turn.prefix for turn in turns] == [None, *(turn.id for turn in turns[:-1])]


def call(name: str, **arguments: Any) -> str:
    said = ", ".join(f'"{key}": {value}' for key, value in arguments.items())
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{{said}}}}}\n</tool_call>'


def test_an_agent_and_its_tools(play: Any) -> None:
    """Calls of one answer run at once, the conversation is one path of tokens, and the reward reaches its last turn."""
    played = play(Calculator, ROW, REPLIES, plan=plan())
    assert played.texts[-1] == ANSWER
    assert one_path(played)
    assert played.scored.outcome.kind == "ok"
    assert played.scored.rewards == {played.record.turns[-1].id: 1.0}
    assert played.scored.left_out == {}
    assert played.scored.metrics["num_turns"] == 6
    assert (played.scored.metrics["tools/num_calls"], played.scored.metrics["tools/num_errors"]) == (3, 0)
    assert [(span.name, span.inputs, span.outputs) for span in played.spans] == [
        ("add", {"a": 17, "b": 25}, "42"),
        ("multiply", {"a": 17, "b": 25}, "425"),
        ("multiply", {"a": 42, "b": 3}, "126"),
    ]
    assert [span.turn_id for span in played.spans] == [played.record.turns[idx].id for idx in (0, 0, 1)]


def test_the_class_is_set_up_once(play: Any) -> None:
    """`init_class` may give the tools, as loops written for verl do, and the graph is built once for a run."""
    built = []

    class Own(Calculator):
        @classmethod
        def init_class(cls, config: Any, tokenizer: Any, **kwargs: Any) -> None:
            cls.tools = (add, multiply)
            super().init_class(config, tokenizer)

        @classmethod
        def build_graph(cls) -> Any:
            built.append(cls.tools)
            return super().build_graph()

    play(Own, [ROW, ROW], (*REPLIES, *REPLIES), plan=plan())
    assert built == [(add, multiply)]


def test_a_graph_of_the_objects_own(play: Any) -> None:
    """`build_graph` may be a method of the object; then each trajectory has its own graph."""

    class Own(Calculator):
        def build_graph(self) -> Any:  # type: ignore[override]
            async def ask(state: MessagesState) -> Any:
                return {"messages": [await ChatModel(client=self.server_manager).ainvoke(state["messages"])]}

            return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()

    assert play(Own, [ROW, ROW], ["One.", "Two."]).texts == ["Two."]


def test_branches_that_ask_at_once(play: Any) -> None:
    """Nodes that run side by side have a path each, none is lost, and the number is that of every leaf."""

    class Own(Calculator):
        @classmethod
        def build_graph(cls) -> Any:
            def ask(words: str) -> Any:
                async def node(state: MessagesState) -> Any:
                    asked = [*state["messages"], HumanMessage(words)]
                    return {"messages": [await ChatModel().ainvoke(asked)]}

                return node

            graph = StateGraph(MessagesState)
            for name in ("left", "right"):
                graph.add_node(name, ask(name)).add_edge(START, name).add_edge(name, "join")
            return graph.add_node("join", ask("join")).add_edge("join", END).compile()

    played = play(Own, ROW, lambda call: "Well.")
    assert len(played.record.turns) == 3
    assert sum(len(turn.sampled.token_ids) for turn in played.record.turns) == played.record.num_sampled_tokens
    assert played.scored.left_out == {}
    followed = {turn.follows for turn in played.record.turns}
    leaves = {turn.id for turn in played.record.turns} - followed
    assert played.scored.rewards == dict.fromkeys(leaves, 1.0) and len(leaves) > 1


def test_a_node_that_is_run_again(play: Any) -> None:
    """A retry samples anew; what the first try sampled stays in the record and is trained too."""
    tries = []

    class Own(Calculator):
        @classmethod
        def build_graph(cls) -> Any:
            async def ask(state: MessagesState) -> Any:
                answer = await ChatModel().ainvoke(state["messages"])
                tries.append(answer.content)
                if len(tries) == 1:
                    raise ConnectionError("try again")
                return {"messages": [answer]}

            graph = StateGraph(MessagesState)
            graph.add_node("ask", ask, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
            return graph.add_edge(START, "ask").compile()

    played = play(Own, ROW, ["No.", "Yes."])
    assert tries == played.texts == ["No.", "Yes."]
    assert played.scored.left_out == {}


def test_a_history_that_is_told_in_short(play: Any) -> None:
    """A summary in the place of the history begins a path of its own; both are there, and the credit is linked."""

    class Own(Calculator):
        @classmethod
        def build_graph(cls) -> Any:
            async def ask(state: MessagesState) -> Any:
                return {"messages": [await ChatModel().ainvoke(state["messages"])]}

            async def shorten(state: MessagesState) -> Any:
                told = await ChatModel().ainvoke([*state["messages"], HumanMessage("In short?")])
                gone = [RemoveMessage(message.id) for message in state["messages"]]
                return {"messages": [*gone, HumanMessage(f"So far: {told.content} And now?")]}

            graph = StateGraph(MessagesState)
            graph.add_node("first", ask).add_node("shorten", shorten).add_node("last", ask)
            graph.add_edge(START, "first").add_edge("first", "shorten").add_edge("shorten", "last")
            return graph.compile()

    first, summary, last = (played := play(Own, ROW, ["A long answer.", "Short.", "Done."])).record.turns
    assert (summary.prefix, last.prefix) == (first.id, None)
    assert last.follows == summary.id
    assert played.scored.left_out == {}
    assert played.scored.rewards == {last.id: 1.0}


@pytest.mark.parametrize(
    ("turns", "num_turns"), [({"max_assistant_turns": 2}, 2), ({"max_user_turns": 1}, 2), ({"max_user_turns": 2}, 3)]
)
def test_limits_of_turns(play: Any, turns: dict[str, int], num_turns: int) -> None:
    """They hold before the request that would break them."""
    played = play(Calculator, ROW, REPLIES, plan=plan(**turns))
    assert len(played.record.turns) == num_turns
    assert played.scored.outcome.kind == "ok"


def test_one_call_at_a_time(play: Any) -> None:
    """The default: an answer ends after its first call."""
    played = play(Calculator, ROW, [BOTH, call("multiply", a=1, b=2), ANSWER], plan=plan(max_parallel_calls=1))
    assert [span.name for span in played.spans] == ["add", "multiply"]
    assert one_path(played)


def test_calls_beyond_the_limit_are_answered(play: Any) -> None:
    """With an error that says so, in its place."""
    three = "\n".join(call("add", a=idx, b=1) for idx in range(3))
    played = play(Calculator, ROW, [three, ANSWER], plan=plan(max_parallel_calls=2))
    results = [message.content or "" for message in played.record.turns[1].messages if message.role == "tool"]
    assert results[:2] == ["1", "2"] and results[2].startswith("Error: of one answer 2 calls are run")


def test_what_is_wrong_with_a_call_is_told_to_the_model(play: Any) -> None:
    """Unknown tools, wrong arguments, tools that raise or take too long, and what is no call at all."""

    @tool
    def fail() -> str:
        """Fails."""
        raise ValueError("no luck")

    @tool
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(30)
        return ""

    class Own(Calculator):
        tools = (add, fail, wait)

    broken = '<tool_call>\n{"name": "add", "arguments": {"a": \n</tool_call>'
    calls = (call("sub", a=1), call("add", a='"x"', b=1), call("fail"), call("wait"), broken)
    began_at = time.monotonic()
    played = play(Own, ROW, [*calls, "Enough."], plan=plan(tool_timeout_s=0.05))
    assert time.monotonic() - began_at < 20
    told = [turn.messages[-1].content or "" for turn in played.record.turns[1:]]
    for words, said in zip(
        ("sub is not a valid tool", "add", "ValueError: no luck", "did not answer within 0.05 s"), told, strict=False
    ):
        assert words in said and said.startswith("Error")
    assert told[4].startswith("Error: Failed to decode tool call: <tool_call>")
    assert all(span.error for span in played.spans)
    assert played.texts[-1] == "Enough."
    assert one_path(played)


def test_the_tools_of_the_run(play: Any, tmp_path: Path) -> None:
    """Tools that the run's files name run in the same graph, beside LangChain's, each call answered in its place."""
    (tmp_path / "own_tools.py").write_text(
        "from ludus.compat.verl import function_tool\n\n\n"
        "@function_tool\n"
        "async def halve(number: int) -> float:\n"
        '    """Half of a number.\n\n    Args:\n        number: Which.\n    """\n'
        "    return number / 2\n"
    )
    calls = "\n".join([call("halve", number=3), call("add", a=1, b=1), call("halve", number=5)])
    run_plan = plan(function_tool_path=str(tmp_path / "own_tools.py"), max_parallel_calls=2)
    played = play(Calculator, ROW, [calls, "Done."], plan=run_plan)
    told = [message.content or "" for message in played.record.turns[1].messages if message.role == "tool"]
    assert told[:2] == ["1.5", "2"] and told[2].startswith("Error: of one answer 2 calls are run")
    assert [tool.name for tool in played.record.turns[0].tools] == ["add", "multiply", "halve"]
    assert sorted(span.name for span in played.spans) == ["add", "halve", "halve"]
    assert one_path(played)


def test_long_answers_of_tools_are_cut(play: Any) -> None:
    """To tokens, at the side that the run says."""

    @tool
    def tell() -> str:
        """Tells."""
        return "seven wizards " * 200

    class Own(Calculator):
        tools = (tell,)

    played = play(
        Own,
        ROW,
        [call("tell"), "Oh."],
        plan=plan(max_tool_response_length=20, tool_response_truncate_side="right"),
    )
    said = played.record.turns[1].messages[-1].content or ""
    assert said.startswith("seven wizards") and said.endswith("...(truncated)") and len(said) < 200


def test_the_room_of_the_response(play: Any) -> None:
    """`response_length` counts what tools say too, and nothing is sampled that would not be trained."""
    played = play(Calculator, ROW, REPLIES, plan=configured(multi_turn=plan().rollout.multi_turn, response_length=150))
    turns = played.record.turns
    path = played.record.path_ids(turns[-1].node)
    first = len(played.record.path_ids(turns[0].node)) - len(turns[0].sampled.token_ids)
    assert len(turns) < 3 and len(path) - first <= 150
    assert played.scored.left_out == {} and played.scored.outcome.kind == "ok"


def test_a_limit_of_the_episode(play: Any) -> None:
    """It ends the graph as it stands, and what was sampled is returned."""
    played = play(Calculator, ROW, REPLIES, plan=plan(), limits=Limits(max_turns=2))
    assert len(played.record.turns) == 2
    assert played.scored.rewards == {played.record.turns[-1].id: 1.0}
    assert played.scored.metadata["ended_by"] == "turn_limit"


def test_a_graph_that_fails(play: Any) -> None:
    """It fails the episode, and hands nothing back in its place."""

    class Own(Calculator):
        @classmethod
        def build_graph(cls) -> Any:
            async def ask(state: MessagesState) -> Any:
                await ChatModel().ainvoke(state["messages"])
                raise RuntimeError("the graph broke")

            return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()

    with pytest.raises(RuntimeError, match="the graph broke"):
        play(Own, ROW, ["Well."])


def test_a_graph_that_never_asks(play: Any) -> None:
    """There is nothing to train, and the error says where the model is."""

    class Own(Calculator):
        @classmethod
        def build_graph(cls) -> Any:
            return StateGraph(MessagesState).add_node("ask", lambda state: {}).add_edge(START, "ask").compile()

    with pytest.raises(UserError, match="configurable"):
        play(Own, ROW, [])


def test_a_run_of_ones_own(play: Any) -> None:
    """As loops for verl write it: the model is made there, and the messages are converted in the end."""

    class Own(ReactAgentLoop):
        tools = (add, multiply)

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            rollout = self.config.actor_rollout_ref.rollout
            model = ChatModel(
                model="/".join(self.config.actor_rollout_ref.model.path.split("/")[-2:]),
                client=self.server_manager,
                tokenizer=self.tokenizer,
                max_tokens=rollout.response_length,
                max_parallel_calls=rollout.multi_turn.max_parallel_calls,
                tool_parser=rollout.multi_turn.format,
            ).bind_tools(self.tools)
            config = {
                "configurable": {
                    "model": model,
                    "sampling_params": sampling_params,
                    "max_user_turns": None,
                    "max_assistant_turns": 5,
                }
            }
            state = await self.build_graph().ainvoke({"messages": kwargs["raw_prompt"]}, config=config)
            output = convert_to_agent_output(state["messages"], rollout.response_length)
            output.reward_score = 0.5
            return output

    played = play(Own, ROW, REPLIES, plan=plan())
    assert played.scored.rewards == {played.record.turns[-1].id: 0.5}
    assert played.scored.metrics["num_turns"] == 6


def test_tokens_after_the_response_are_left_out(play: Any) -> None:
    """`convert_to_agent_output` cuts, and what it cuts is not trained."""

    class Own(Calculator):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            await super().run(sampling_params, **kwargs)
            output = convert_to_agent_output([], 3)
            output.reward_score = 1.0
            return output

    played = play(Own, ROW, [ANSWER])
    num_sampled = len(played.record.turns[0].sampled.token_ids)
    assert played.scored.left_out == {played.record.turns[0].id: tuple(range(3, num_sampled))}
    with pytest.raises(UserError, match="outside of an episode"):
        convert_to_agent_output([])
