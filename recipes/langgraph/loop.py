"""A ReAct agent of LangGraph: the model calls a tool until it knows the answer."""

from langchain_core.tools import tool

from ludus.compat.verl.langgraph_agent.react_agent_loop import ReactAgentLoop


@tool
def calculate(a: int, b: int) -> int:
    """The value of a @ b."""
    return 3 * a - 2 * b


class OperatorLoop(ReactAgentLoop):
    """The graph is the default one: agent, tools, agent, …"""

    tools = (calculate,)
