"""Agent loops: agents that ask the model in token ids and hand back a trajectory, as verl's users write them."""

from ludus.agents.loop.base import AgentLoopBase, simple_timer
from ludus.agents.loop.config import DictConfigWrap, LoopConfig
from ludus.agents.loop.door import LoopDoor, from_loop
from ludus.agents.loop.gsm8k import Gsm8kInteraction
from ludus.agents.loop.interaction import BaseInteraction
from ludus.agents.loop.output import AgentLoopMetrics, AgentLoopOutput, outputs_of
from ludus.agents.loop.parser import FunctionCall, ToolParser
from ludus.agents.loop.plan import LoopPlan
from ludus.agents.loop.registry import register
from ludus.agents.loop.server import AsyncLLMServerManager, TokenOutput
from ludus.agents.loop.settings import MultiTurnSettings, RewardSettings
from ludus.agents.loop.single import SingleTurnAgentLoop
from ludus.agents.loop.tokens import LoopTokenizer
from ludus.agents.loop.tool import AgentData, AgentState, ToolAgentLoop
from ludus.agents.loop.tracing import rollout_trace_attr, rollout_trace_op

__all__ = [
    "AgentData",
    "AgentLoopBase",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AgentState",
    "AsyncLLMServerManager",
    "BaseInteraction",
    "DictConfigWrap",
    "FunctionCall",
    "Gsm8kInteraction",
    "LoopConfig",
    "LoopDoor",
    "LoopPlan",
    "LoopTokenizer",
    "MultiTurnSettings",
    "RewardSettings",
    "SingleTurnAgentLoop",
    "TokenOutput",
    "ToolAgentLoop",
    "ToolParser",
    "from_loop",
    "outputs_of",
    "register",
    "rollout_trace_attr",
    "rollout_trace_op",
    "simple_timer",
]
