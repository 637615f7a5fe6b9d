"""Loops as verl's users have them run with their import lines changed and nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.verl.settings import MultiTurnSettings, RewardSettings
from tests.compat.verl.conftest import Player, ReplayResult, configured, play, text

__all__ = ["play", "text"]  # fixtures

# As loops were written when generate returned a list of ids and the prompt came as `messages`.
FIRST_FORM = """
import asyncio
import json
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.utils.profiler import simple_timer
from verl.utils.rollout_trace import rollout_trace_op


@register("first_form_agent")
class FirstForm(AgentLoopBase):
    @classmethod
    def init_class(cls, config, tokenizer, **kwargs):
        if cls._class_initialized:
            return
        cls._class_initialized = True
        cls.tokenizer = tokenizer
        cls.response_length = config.actor_rollout_ref.rollout.response_length
        cls.max_parallel_calls = config.actor_rollout_ref.rollout.multi_turn.max_parallel_calls
        cls.tool_parser = ToolParser.get_tool_parser(config.actor_rollout_ref.rollout.multi_turn.format, tokenizer)

    @rollout_trace_op
    async def run(self, messages: list[dict[str, Any]], sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        metrics = {}
        request_id = uuid4().hex
        prompt_ids = await self.loop.run_in_executor(
            None,
            lambda: self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True),
        )
        with simple_timer("generate_sequences", metrics):
            response_ids = await self.server_manager.generate(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
        content, calls = await self.tool_parser.extract_tool_calls(response_ids)
        score = float(len(calls[: self.max_parallel_calls]) == 1 and json.loads(calls[0].arguments) == {"a": 1})
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids[: self.response_length],
            response_mask=[1] * len(response_ids[: self.response_length]),
            num_turns=2,
            metrics=metrics,
            reward_score=score,
            extra_fields={"content": content},
        )
"""

# As they are written now: TokenOutput, several outputs, tools and users of a user's own.
NEW_FORM = """
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, DictConfigWrap
from verl.interactions.base import BaseInteraction
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.workers.rollout.llm_server import LLMServerClient


class Doubles(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.factor = config["factor"]

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[ToolResponse, float, dict]:
        return ToolResponse(text=str(self.factor * parameters["number"])), 0.25, {}


@register("new_form_agent")
class NewForm(AgentLoopBase):
    def __init__(self, trainer_config: DictConfigWrap, server_manager: LLMServerClient, tokenizer, processor, **kwargs):
        super().__init__(trainer_config, server_manager, tokenizer, processor, **kwargs)
        self.response_length = self.rollout_config.response_length

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> list[AgentLoopOutput]:
        outputs = []
        for message in kwargs["raw_prompt"]:
            prompt_ids = await self.apply_chat_template([message])
            output = await self.server_manager.generate(
                request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params, image_data=None
            )
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=prompt_ids,
                    response_ids=output.token_ids,
                    response_mask=[1] * len(output.token_ids),
                    response_logprobs=output.log_probs,
                    routed_experts=output.routed_experts,
                    num_turns=2,
                    metrics=AgentLoopMetrics(),
                    extra_fields={"steps": output.extra_fields["global_steps"]},
                )
            )
        return outputs
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Imports a user's file once its import lines are changed."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_and_import(name: str, source: str) -> Any:
        (tmp_path / f"{name}.py").write_text(source.replace("from verl.", "from ludus.compat.verl."))
        return importlib.import_module(name)

    return write_and_import


def test_a_loop_of_the_first_form(play: Player, load: Callable[[str, str], Any]) -> None:
    """The prompt as `messages`, a list of ids from generate, a parser of calls, a traced `run`."""
    module = load("first_form", FIRST_FORM)
    plan = configured(response_length=64, multi_turn=MultiTurnSettings(format="hermes"))
    row = {"prompt": [{"role": "user", "content": "Call it."}], "agent_name": "first_form_agent"}
    answer = 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    played: ReplayResult = play(module.FirstForm, row, [answer], plan=plan)
    assert played.scored.reward == 1.0 and played.scored.metadata == {"content": "Well."}
    assert [(span.kind, span.name) for span in played.spans] == [("op", "FirstForm.run")]


def test_a_loop_of_the_newest_form(play: Player, load: Callable[[str, str], Any], tmp_path: Path) -> None:
    """TokenOutput, several outputs, the run's reward function for the last of them."""
    module = load("new_form", NEW_FORM)
    (tmp_path / "new_score.py").write_text("def compute_score(**given):\n    return given['solution_str'] == 'two'\n")
    plan = configured(reward=RewardSettings(custom_reward_function={"path": str(tmp_path / "new_score.py")}))
    row = {"prompt": [{"role": "user", "content": text} for text in ("One.", "Two.")], "agent_name": "new_form_agent"}
    played: ReplayResult = play(module.NewForm, row, ["one", "two"], plan=plan)
    assert played.scored.reward == 1.0 and played.scored.rewards == {played.record.turns[1].id: 1.0}
    assert played.scored.metadata == {"steps": 0}


def test_tools_of_a_users_own(play: Player, load: Callable[[str, str], Any], tmp_path: Path) -> None:
    """A class of tools and its YAML, as they were, with the tool agent."""
    load("own_tools_of_verl", NEW_FORM)
    (tmp_path / "tools.yaml").write_text(
        "tools:\n"
        "- class_name: own_tools_of_verl.Doubles\n"
        "  config: {type: native, factor: 2}\n"
        "  tool_schema:\n"
        "    type: function\n"
        "    function:\n"
        "      name: double\n"
        "      description: Doubles.\n"
        "      parameters: {type: object, properties: {number: {type: integer}}, required: [number]}\n"
    )
    plan = configured(multi_turn=MultiTurnSettings(tool_config_path=str(tmp_path / "tools.yaml")))
    row = {
        "prompt": [{"role": "user", "content": "Twice 4?"}],
        "agent_name": "tool_agent",
        "data_source": "openai/gsm8k",
        "reward_model": {"ground_truth": "8"},
    }
    call = '<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>'
    module = importlib.import_module("ludus.compat.verl")
    played: ReplayResult = play(module.ToolAgentLoop, row, [call, "#### 8"], plan=plan)
    assert [message.content for message in played.record.turns[1].messages][-1] == "8"
    assert played.scored.reward == 1.0 and played.scored.metadata["tool_rewards"] == [0.25]
