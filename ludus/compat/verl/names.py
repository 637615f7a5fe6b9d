"""Where the names of `verl` are: by its modules, which `ludus.compat.names` makes of this table."""

from ludus.compat.names import Modules, of

HERE = "ludus.compat.verl"

MODULES: Modules = {
    "": of("ludus.agents.tools.base", "BaseTool", "ToolResponse")
    | of("ludus.agents.tools.function", "function_tool")
    | of("ludus.agents.tools.schema", "OpenAIFunctionToolSchema")
    | of(f"{HERE}.base", "AgentLoopBase")
    | of(f"{HERE}.interaction", "BaseInteraction")
    | of(f"{HERE}.output", "AgentLoopMetrics", "AgentLoopOutput")
    | of(f"{HERE}.registry", "register")
    | of(f"{HERE}.server", "AsyncLLMServerManager", "TokenOutput")
    | of(f"{HERE}.single", "SingleTurnAgentLoop")
    | of(f"{HERE}.tool_loop", "ToolAgentLoop"),
    "experimental.agent_loop": of(f"{HERE}.base", "AgentLoopBase")
    | of(f"{HERE}.output", "AgentLoopMetrics", "AgentLoopOutput")
    | of(f"{HERE}.registry", "register")
    | of(f"{HERE}.server", "AsyncLLMServerManager", "TokenOutput")
    | of(f"{HERE}.single", "SingleTurnAgentLoop")
    | of(f"{HERE}.tool_loop", "ToolAgentLoop"),
    "experimental.agent_loop.agent_loop": of(f"{HERE}.base", "AgentLoopBase")
    | of(f"{HERE}.config_view", "DictConfigWrap")
    | of(f"{HERE}.output", "AgentLoopMetrics", "AgentLoopOutput")
    | of(f"{HERE}.registry", "register")
    | of(f"{HERE}.server", "AsyncLLMServerManager", "TokenOutput"),
    "experimental.agent_loop.single_turn_agent_loop": of(f"{HERE}.single", "SingleTurnAgentLoop"),
    "experimental.agent_loop.tool_agent_loop": of(f"{HERE}.tool_loop", "AgentData", "AgentState", "ToolAgentLoop"),
    "experimental.agent_loop.tool_parser": of(f"{HERE}.parser", "FunctionCall", "ToolParser"),
    "interactions.base": of(f"{HERE}.interaction", "BaseInteraction"),
    "interactions.gsm8k_interaction": of(f"{HERE}.gsm8k_user", "Gsm8kInteraction"),
    "langgraph_agent": of("ludus.agents.langchain.model", "ChatModel", "MaxTokenExceededError")
    | of(f"{HERE}.graph_loop", "ReactAgentLoop", "convert_to_agent_output"),
    "langgraph_agent.chat_model": of("ludus.agents.langchain.model", "ChatModel", "MaxTokenExceededError")
    | of(f"{HERE}.graph_loop", "convert_to_agent_output"),
    "langgraph_agent.react_agent_loop": of(f"{HERE}.graph_loop", "ReactAgentLoop", "call_model", "should_continue"),
    "tools.base_tool": of("ludus.agents.tools.base", "BaseTool"),
    "tools.function_tool": of("ludus.agents.tools.function", "FunctionTool", "function_tool"),
    "tools.gsm8k_tool": of(f"{HERE}.gsm8k_tool", "Gsm8kTool"),
    "tools.schemas": of("ludus.agents.tools.base", "ToolResponse")
    | of(
        "ludus.agents.tools.schema",
        "OpenAIFunctionParametersSchema",
        "OpenAIFunctionPropertySchema",
        "OpenAIFunctionSchema",
        "OpenAIFunctionToolSchema",
    ),
    "utils.profiler": of(f"{HERE}.base", "simple_timer"),
    "utils.reward_score": of(f"{HERE}.data_sources", "default_compute_score"),
    "utils.reward_score.gsm8k": of(f"{HERE}.data_sources", compute_score="score_gsm8k"),
    "utils.rollout_trace": of(f"{HERE}.tracing", "rollout_trace_attr", "rollout_trace_op"),
    "workers.rollout.llm_server": of(
        f"{HERE}.server", "AsyncLLMServerManager", LLMServerClient="AsyncLLMServerManager"
    ),
    "workers.rollout.replica": of(f"{HERE}.server", "TokenOutput"),
}
