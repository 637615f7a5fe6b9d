"""Ready-made agents for rows with `messages` and `answer`, one for each SDK: OpenAI, OpenAI Agents, Anthropic, Claude
Agent, LangChain.

Knows: these SDKs, imported when an agent is made.  Knows not: the record, training.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from ludus.compat.areal.calculator import FUNCTIONS, INSTRUCTIONS, math_reward_fn, sdk
from ludus.rewards.wrapper import AsyncRewardWrapper

RETRY_PROMPT = "That answer is wrong, or could not be read. Look for the mistake in it, then answer again."


class _Scored:
    """Base of agents whose answers are compared by math-verify. `options`, except `_not_sent`, are sent with every
    request."""

    _not_sent: tuple[str, ...] = ("max_tokens", "max_turns")

    def __init__(self, **options: Any) -> None:
        self.kwargs = {name: value for name, value in options.items() if name not in self._not_sent}
        self.reward_fn = AsyncRewardWrapper(math_reward_fn)

    async def score(self, completions: Any, data: Mapping[str, Any]) -> float:
        return float(await self.reward_fn(completions=str(completions or ""), answer=data["answer"]))


def _access(extra_kwargs: Mapping[str, Any], vendor: str = "OPENAI") -> dict[str, Any]:
    """Address and key of the model, from the agent's arguments or the environment."""
    return {
        "base_url": extra_kwargs.get("base_url") or os.getenv(f"{vendor}_BASE_URL"),
        "api_key": extra_kwargs.get("api_key") or os.getenv(f"{vendor}_API_KEY"),
    }


def _openai(extra_kwargs: Mapping[str, Any]) -> Any:
    given = {**_access(extra_kwargs), "http_client": extra_kwargs.get("http_client"), "max_retries": 0}
    return sdk("openai", "openai").AsyncOpenAI(**given)


class OpenAIMathAgent(_Scored):
    """Asks once."""

    async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> float:
        messages = data["messages"]
        asked = _openai(extra_kwargs).chat.completions.create(model="default", messages=messages, **self.kwargs)
        return await self.score((await asked).choices[0].message.content, data)


class OpenAIMultiTurnMathAgent(_Scored):
    """Tries until an answer is right, at most `max_turns` times; each try has its own reward."""

    def __init__(self, max_turns: int = 8, **options: Any) -> None:
        super().__init__(**options)
        self.max_turns = max_turns

    async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> dict[str, float]:
        client, messages = _openai(extra_kwargs), list(data["messages"])
        rewards: dict[str, float] = {}
        for _ in range(self.max_turns):
            answer = await client.chat.completions.create(model="default", messages=messages, **self.kwargs)
            said = answer.choices[0].message
            rewards[answer.id] = await self.score(said.content, data)
            if rewards[answer.id] == 1:
                break
            messages += [said.model_dump(exclude_none=True), {"role": "user", "content": RETRY_PROMPT}]
        return rewards


class OpenAIMathToolAgent(_Scored):
    """Uses a calculator tool, with OpenAI's agents SDK."""

    async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> float:
        agents = sdk("agents", "openai-agents")
        options = dict(self.kwargs)
        if "max_completion_tokens" in options:  # renamed to the SDK's name
            options["max_tokens"] = options.pop("max_completion_tokens")
        config = agents.RunConfig(
            model_provider=agents.OpenAIProvider(openai_client=_openai(extra_kwargs), use_responses=False),
            model="default",
            tracing_disabled=True,
            model_settings=agents.ModelSettings(**options),
        )
        tools = [agents.function_tool(function) for function in FUNCTIONS]
        agent = agents.Agent(name="Calculating", instructions=INSTRUCTIONS, tools=tools)
        result = await agents.Runner.run(agent, input=data["messages"][-1]["content"], run_config=config)
        return await self.score(result.final_output, data)


def build_math_agent() -> Any:
    """An agent of OpenAI's agents SDK with handoffs to others, which analyse, solve, refine and verify."""
    agents = sdk("agents", "openai-agents")
    preface = sdk("agents.extensions.handoff_prompt", "openai-agents").RECOMMENDED_PROMPT_PREFIX
    parts = {
        "analyze_problem": ("Problem Analyzer", "Say what is given, what is asked, and how to go about it."),
        "solve_problem": ("Solution Specialist", "Solve the problem step by step, with every calculation."),
        "refine_solution": ("Refinement Agent", "Find the mistakes in the solution so far, and correct them."),
        "verify_solution": ("Verification Agent", "Check every step, then say the final answer."),
    }
    handoffs = [
        agents.handoff(
            agent=agents.Agent(name=name, model="default", instructions=f"{preface}\n{task}"),
            tool_name_override=tool,
            tool_description_override=task,
        )
        for tool, (name, task) in parts.items()
    ]
    task = "Solve the problem with the help of the others, each of which has one task, and give the final answer."
    return agents.Agent(
        name="Math Problem Solver", model="default", instructions=f"{preface}\n{task}", handoffs=handoffs
    )


class AnthropicMathAgent(_Scored):
    """Asks once, by Anthropic's messages."""

    _not_sent = ("max_completion_tokens", "max_turns")

    async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> float:
        anthropic = sdk("anthropic", "anthropic")
        given = {**_access(extra_kwargs, "ANTHROPIC"), "http_client": extra_kwargs.get("http_client")}
        client = anthropic.AsyncAnthropic(**given, max_retries=0)
        system = [message["content"] for message in data["messages"] if message["role"] == "system"]
        answer = await client.messages.create(
            model="default",
            messages=[message for message in data["messages"] if message["role"] != "system"],
            max_tokens=self.kwargs.get("max_tokens", 1024),
            **({"system": "\n".join(system)} if system else {}),
            # Not all of these are arguments in every version of the SDK.
            extra_body={name: value for name, value in self.kwargs.items() if name != "max_tokens"},
        )
        return await self.score("".join(block.text for block in answer.content if block.type == "text"), data)


class ClaudeMathToolAgent(_Scored):
    """Uses a calculator tool, with Claude's agent SDK, whose own program asks the model over HTTP."""

    SYSTEM_PROMPT = INSTRUCTIONS

    _not_sent = ("max_tokens",)

    async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> float:
        claude = sdk("claude_agent_sdk", "claude-agent-sdk")
        tools = [_claude_tool(claude, function) for function in FUNCTIONS]
        names = [f"mcp__calculator__{function.__name__}" for function in FUNCTIONS]
        access = _access(extra_kwargs, "ANTHROPIC")
        options = claude.ClaudeAgentOptions(
            system_prompt=self.SYSTEM_PROMPT,
            tools=names,
            allowed_tools=names,
            mcp_servers={"calculator": claude.create_sdk_mcp_server(name="calculator", version="1", tools=tools)},
            max_turns=self.kwargs.get("max_turns", 10),
            cwd=tempfile.gettempdir(),
            env={
                "ANTHROPIC_BASE_URL": access["base_url"],
                "ANTHROPIC_API_KEY": access["api_key"],
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self.kwargs.get("max_completion_tokens", 1024)),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
        )
        said: list[str] = []
        async with claude.ClaudeSDKClient(options=options) as client:
            await client.query(data["messages"][-1]["content"])
            async for message in client.receive_response():
                if isinstance(message, claude.AssistantMessage):
                    said += [block.text for block in message.content if isinstance(block, claude.TextBlock)]
        return await self.score("".join(said), data)


def _claude_tool(claude: Any, function: Any) -> Any:
    async def call(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            text, is_error = str(function(**arguments)), False
        except (TypeError, ValueError) as error:
            text, is_error = str(error), True
        return {"content": [{"type": "text", "text": text}], "is_error": is_error}

    names = [name for name in function.__annotations__ if name != "return"]
    return claude.tool(function.__name__, function.__doc__, dict.fromkeys(names, float))(call)


class LangChainMathAgent(_Scored):
    """Asks once, with LangChain's `ChatOpenAI`."""

    _not_sent = ("max_tokens", "max_turns")

    def _model(self, extra_kwargs: Mapping[str, Any]) -> Any:
        options = {**self.kwargs, "max_tokens": self.kwargs.get("max_completion_tokens", 1024)}
        options.pop("max_completion_tokens", None)
        return sdk("langchain_openai", "langchain-openai").ChatOpenAI(
            model="default",
            **_access(extra_kwargs),
            http_async_client=extra_kwargs.get("http_client"),
            max_retries=0,
            **options,
        )

    async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> float:
        answer = await self._model(extra_kwargs).ainvoke(data["messages"])
        return await self.score(answer.content, data)


class LangChainMathToolAgent(LangChainMathAgent):
    """Uses a calculator tool, with LangChain's agents."""

    async def run(self, data: Mapping[str, Any], **extra_kwargs: Any) -> float:
        tool = sdk("langchain_core.tools", "langchain-core").tool
        create_agent = sdk("langchain.agents", "langchain").create_agent
        tools = [tool(function) for function in FUNCTIONS]
        agent = create_agent(model=self._model(extra_kwargs), tools=tools, system_prompt=INSTRUCTIONS)
        question = {"role": "user", "content": data["messages"][-1]["content"]}
        result = await agent.ainvoke({"messages": [question]})
        return await self.score(result["messages"][-1].content, data)
