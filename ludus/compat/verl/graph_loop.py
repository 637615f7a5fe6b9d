"""An agent loop that runs a graph of LangGraph: an agent and its tools, or whatever graph is built in its place.

Knows: graphs, the loop's limits, the record.  Knows not: how a reward is found.
Invariants: the output is made from the record, so that no token is lost by branches, retries or edited histories; if
the graph fails, the episode has failed, and if a limit is met, the episode ends at that point.

    START ─▶ agent ─▶ tools ─▶ agent ─▶ … ─▶ END
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import dropwhile, groupby
from typing import Any, ClassVar

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph

from ludus.agents.adapter import current_episode
from ludus.agents.langchain.model import ChatModel
from ludus.agents.tools.episode_tools import EpisodeTools
from ludus.compat.verl.base import AgentLoopBase
from ludus.compat.verl.graph_tools import LimitedTools, NodeLimits, calls_something
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput, trajectory_of
from ludus.compat.verl.resources import tool_limits
from ludus.episodes.limits import LIMIT_CODES
from ludus.errors import AgentError, UserError
from ludus.runs.interactions import tool_json
from ludus.types import SessionRecord

_LEAST_STEPS = 50
"""Added to a graph's steps, for nodes besides its agent and tools."""
_MOST_STEPS = 1000  # without a limit on turns; the model's context is full before that


async def call_model(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
    """The node `agent`."""
    asked = config["configurable"]
    message = await asked["model"].ainvoke(state["messages"], sampling_params=asked["sampling_params"])
    return {"messages": [message]}


def should_continue(state: MessagesState, config: RunnableConfig) -> str:
    """The next node after an answer: the tools if it calls any, unless no further answer is allowed."""
    asked, messages = config["configurable"], state["messages"]
    if not calls_something(messages[-1]):
        return END
    num_answers = sum(isinstance(message, AIMessage) for message in messages)
    limits = (asked["max_assistant_turns"], num_answers), (asked["max_user_turns"], _num_asked(messages))
    return END if any(most is not None and number >= most for most, number in limits) else "tools"


class ReactAgentLoop(AgentLoopBase):
    """Base of loops with a graph. Subclass it and set `tools`; override `build_graph` for another graph, `run` for more
    than one."""

    tools: ClassVar[Sequence[Any]] = ()
    """Functions or tools of LangChain."""
    graph: ClassVar[Any] = None
    """What `build_graph` made. None: it has not been asked yet."""

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, **kwargs: Any) -> None:
        """Set `cls.tools` here where it needs the configuration."""
        if not cls._class_initialized:
            cls.graph = None
        super().init_class(config, tokenizer, **kwargs)

    @classmethod
    def build_graph(cls) -> Any:
        """The compiled graph. Its nodes find `model` and `sampling_params` in `config["configurable"]`."""
        graph = StateGraph(MessagesState)
        graph.add_node("agent", call_model)
        graph.add_node("tools", LimitedTools(cls.tools))
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", should_continue, {"tools": "tools", END: END})
        graph.add_edge("tools", "agent")
        return graph.compile()

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Runs the graph on the row's prompt."""
        session, ended_by = self.server_manager.session, "answer"
        async with self.open_tools(**kwargs) as episode_tools:
            config = self.graph_config(sampling_params, episode_tools)
            try:
                await self._graph().ainvoke({"messages": list(kwargs["raw_prompt"])}, config)
            except AgentError as error:
                if error.code not in LIMIT_CODES or not session.snapshot().turns:
                    raise
                ended_by = error.code
        return make_output(session.snapshot(), ended_by=ended_by, episode_tools=episode_tools)

    def chat_model(self) -> ChatModel:
        """The model of this trajectory, without tools."""
        rollout = self._rollout
        return ChatModel(
            client=self.server_manager,
            response_length=rollout.response_length,
            tool_parser=rollout.multi_turn.format,
            max_parallel_calls=1 if rollout.multi_turn.max_parallel_calls == 1 else None,
        )

    def graph_config(
        self, sampling_params: Mapping[str, Any], episode_tools: EpisodeTools | None = None
    ) -> RunnableConfig:
        """What the graph is invoked with. episode_tools: tools beside those of the class."""
        model, turns = self.chat_model(), self._rollout.multi_turn
        tools = [*self.tools, *(tool_json(spec) for spec in (() if episode_tools is None else episode_tools.specs))]
        most = turns.max_assistant_turns
        limits = NodeLimits(
            max_parallel_calls=turns.max_parallel_calls,
            each=tool_limits(self._resources().config),
            text=self.tokenizer.text,
            episode_tools=episode_tools,
        )
        return {
            "recursion_limit": _MOST_STEPS if most is None else max(_LEAST_STEPS, 3 * most),
            "configurable": {
                "model": model.bind_tools(tools) if tools else model,
                "sampling_params": dict(sampling_params),
                "max_assistant_turns": most,
                "max_user_turns": turns.max_user_turns,
                "tool_limits": limits,
            },
        }

    def _graph(self) -> Any:
        """The graph, built once in a run, unless `build_graph` is an instance method."""
        cls = type(self)
        if not (inspect.ismethod(self.build_graph) and self.build_graph.__self__ is cls):
            return self.build_graph()
        if cls.graph is None:
            cls.graph = self.build_graph()
        return cls.graph


def make_output(
    record: SessionRecord, *, ended_by: str = "answer", episode_tools: EpisodeTools | None = None
) -> AgentLoopOutput | list[AgentLoopOutput]:
    """All sampled tokens, one sequence for each path of tokens; the reward is given to the last one.

    ended_by: `answer`, or the code of the limit that was met.
    episode_tools: the closed tools, whose rewards and metrics are included.
    Raises UserError if nothing was sampled.
    """
    if not record.turns:
        raise UserError("the graph never asked the model; its nodes find it in config['configurable']['model']")
    last = record.turns[-1]
    episode = current_episode()
    calls = () if episode is None else [span for span in episode.spans.snapshot() if span.kind == "tool"]
    tools_s = sum(span.finished_at - span.started_at for span in calls)
    return trajectory_of(
        record,
        record.turns,
        (*last.messages, last.reply),
        episode_tools,
        ended_by=ended_by,
        num_turns=2 * len(record.turns),
        metrics=AgentLoopMetrics(
            generate_sequences=sum(turn.finished_at - turn.started_at for turn in record.turns), tool_calls=tools_s
        ),
        extra_fields={
            "tool_rewards": [] if episode_tools is None else list(episode_tools.call_rewards),
            "metrics": {
                **({} if episode_tools is None else episode_tools.metrics),  # of the run's own tools; these are of all
                "tools/num_calls": float(len(calls)),
                "tools/num_errors": float(sum(span.error is not None for span in calls)),
                "tools/time_s": tools_s,
            },
        },
    )


def convert_to_agent_output(
    messages: Sequence[AnyMessage], response_length: int | None = None
) -> AgentLoopOutput | list[AgentLoopOutput]:
    """For a custom `run`: the output of a graph that ended with these messages, made from the episode's record.

    response_length: later tokens are left out.  Raises UserError outside of an episode.
    """
    episode = current_episode()
    if episode is None or episode.session is None:
        raise UserError("convert_to_agent_output was called outside of an episode; call it in `run` of an agent loop")
    made = make_output(episode.session.snapshot())
    for output in made if isinstance(made, list) else [made]:
        output.num_turns = sum(not isinstance(message, ToolMessage) for message in messages) + _num_rounds(messages)
        for name in ("response_ids", "response_mask", "response_logprobs"):
            setattr(output, name, getattr(output, name)[:response_length])
    return made


def _num_asked(messages: Sequence[BaseMessage]) -> int:
    """Number of messages to the model after its answers; all results of one round of tools count as one."""
    behind = dropwhile(lambda message: not isinstance(message, AIMessage), messages)
    return sum(isinstance(message, HumanMessage) for message in behind) + _num_rounds(messages)


def _num_rounds(messages: Sequence[BaseMessage]) -> int:
    return sum(are_tools for are_tools, _ in groupby(messages, lambda message: isinstance(message, ToolMessage)))
