"""The tool agent: tools, simulated users and limits, turn by turn."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.tools.base import ToolResponse
from ludus.compat.config import Config, load_config
from ludus.compat.verl.agent_data import AgentData, AgentState
from ludus.compat.verl.resources import LoopResources
from ludus.compat.verl.settings import MultiTurnSettings, RewardSettings
from ludus.compat.verl.tool_loop import ToolAgentLoop
from ludus.episodes.limits import Limits
from ludus.errors import AgentError, ConfigError, UserError
from ludus.text.parse import parser_for
from ludus.text.template import ChatTemplate
from ludus.types import Message
from tests.compat.verl.conftest import Player, ReplayResult, configured

Play = Callable[..., ReplayResult]
ROW = {"prompt": [{"role": "user", "content": "Add up."}], "agent_name": "tool_agent"}
TOOLS = '''
from typing import Any
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.function import function_tool


@function_tool
async def add(a: int, b: int) -> str:
    """Adds.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b)


@function_tool
async def shout(text: str) -> str:
    """Says it often."""
    return text * 200
'''
STATEFUL = """
from ludus.agents.tools.base import BaseTool, ToolResponse

SCHEMA = {"type": "function", "function": {"name": "solve", "description": "Checks.", "parameters": {
    "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}}}
LOG = []


class Solve(BaseTool):
    def get_openai_tool_schema(self):
        return SCHEMA

    async def create(self, instance_id=None, ground_truth="", **kwargs):
        LOG.append("create")
        self.truth, self.best = ground_truth, 0.0
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        LOG.append("execute")
        self.best = max(self.best, float(parameters["answer"] == self.truth))
        return ToolResponse(text=f"score {self.best}"), -0.1, {"tries": 1}

    async def calc_reward(self, instance_id, **kwargs):
        LOG.append("calc_reward")
        return self.best

    async def release(self, instance_id, **kwargs):
        LOG.append("release")
"""


def says(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Config]:
    """A plan with `add` and `shout`, and a reward function that gives 1."""
    (tmp_path / "some_tools.py").write_text(TOOLS)
    (tmp_path / "score.py").write_text("def compute_score(**given):\n    return 1.0\n")

    def make(*, prompt_length: int | None = None, response_length: int | None = None, **turns: Any) -> Config:
        return configured(
            multi_turn=MultiTurnSettings(function_tool_path=str(tmp_path / "some_tools.py"), **turns),
            reward=RewardSettings(custom_reward_function={"path": str(tmp_path / "score.py")}),
            prompt_length=prompt_length,
            response_length=response_length,
        )

    return make


def observations(played: ReplayResult) -> list[Message]:
    """What tools and users said in the last request."""
    return [message for message in played.record.turns[-1].messages if message.role in ("tool", "user")][1:]


def test_a_call_is_answered_and_the_tokens_go_on(play: Play, plan: Callable[..., Config]) -> None:
    """Call, answer of the tool, answer of the model: one path, of which what the model wrote is trained."""
    call = says("add", a=2, b=3)
    played = play(ToolAgentLoop, ROW, [call, "It is 5."], plan=plan())
    first, second = played.record.turns
    assert second.prefix == first.id and played.record.path_ids(first.node)[-1] == 2
    assert [message.content for message in observations(played)] == ["5"]
    assert played.scored.rewards == {second.id: 1.0} and not played.scored.left_out
    metrics = played.scored.metrics
    assert metrics["num_turns"] == 4 and metrics["tools/num_calls"] == 1 and metrics["truncated"] == 0
    assert played.scored.metadata["ended_by"] == "answer"
    kinds = [(span.kind, span.name, span.error) for span in played.spans]
    assert kinds == [("tool", "add", None), ("reward", "compute_score", None)]


def test_calls_of_one_answer_run_at_once_and_in_order(play: Play, plan: Callable[..., Config]) -> None:
    answers = [says("add", a=1, b=1) + "\n" + says("add", a=2, b=2), "done"]
    played = play(ToolAgentLoop, ROW, answers, plan=plan(max_parallel_calls=2))
    assert [message.content for message in observations(played)] == ["2", "4"]


def test_one_call_too_many_is_answered_with_an_error(play: Play, plan: Callable[..., Config]) -> None:
    """No call stays without an answer: what is not run says so."""
    answers = [says("add", a=1, b=1) + "\n" + says("add", a=2, b=2), "done"]
    played = play(ToolAgentLoop, ROW, answers, plan=plan())
    first, second = observations(played)
    assert first.content == "2" and second.content == (
        "Error: of one answer 1 call is run, and this is one more; call again"
    )
    assert first.tool_call_id != second.tool_call_id


def test_a_call_that_cannot_be_decoded_comes_back(
    play: Play, plan: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    """The model reads what was wrong, log and trace say "Failed to decode tool call", and the trajectory goes on."""
    with caplog.at_level(logging.WARNING):
        played = play(ToolAgentLoop, ROW, ["<tool_call>\n{nonsense\n</tool_call>", "sorry"], plan=plan())
    (observation,) = observations(played)
    assert observation.role == "tool" and str(observation.content).startswith("Error: Failed to decode tool call")
    assert "Failed to decode tool call" in caplog.text
    assert played.texts[1] == "sorry" and played.record.turns[1].prefix == played.record.turns[0].id
    error = next(span.error for span in played.spans if span.kind == "tool")
    assert error is not None and error.startswith("Failed to decode tool call")
    assert played.scored.metrics["tools/num_errors"] == 1


def test_wrong_calls_are_for_the_model_to_read(play: Play, plan: Callable[..., Config]) -> None:
    """An unknown tool and a wrong argument are texts; the trajectory goes on."""
    played = play(ToolAgentLoop, ROW, [says("ad", a=1), says("add", a="x", b=1), "done"], plan=plan())
    first, second = observations(played)
    assert "Unknown function 'ad'; did you mean 'add'" in str(first.content)
    assert "the argument 'a'" in str(second.content)


@pytest.mark.parametrize("side", ["left", "middle", "right"])
def test_a_long_answer_of_a_tool_is_cut_to_tokens(side: str, play: Play, plan: Callable[..., Config]) -> None:
    limits = {"max_tool_response_length": 20, "tool_response_truncate_side": side}
    played = play(ToolAgentLoop, ROW, [says("shout", text="ab "), "done"], plan=plan(**limits))
    (observation,) = observations(played)
    tokens = play.text.tokenizer.encode(str(observation.content))  # type: ignore[attr-defined]
    assert len(tokens) <= 20 and "truncated" in str(observation.content)


# ---- limits


def test_answers_are_counted_before_the_next_is_asked_for(play: Play, plan: Callable[..., Config]) -> None:
    """With `max_assistant_turns` the calls of the last answer are not run, and nothing more is sampled."""
    played = play(ToolAgentLoop, ROW, [says("add", a=1, b=1)] * 9, plan=plan(max_assistant_turns=2))
    assert len(played.record.turns) == 2 and played.scored.metrics["tools/num_calls"] == 1
    assert played.scored.metadata["ended_by"] == "max_assistant_turns" and played.scored.metrics["truncated"] == 1


def test_messages_to_the_model_are_counted(play: Play, plan: Callable[..., Config]) -> None:
    played = play(ToolAgentLoop, ROW, [says("add", a=1, b=1)] * 9, plan=plan(max_user_turns=1))
    assert len(played.record.turns) == 2 and played.scored.metadata["ended_by"] == "max_user_turns"


def test_the_response_never_gets_longer_than_it_may(play: Play, plan: Callable[..., Config]) -> None:
    """`response_length` counts model and tools; the last answer is asked for no more tokens than are left, and where
    none are, none is asked for."""
    call = says("add", a=1, b=1)
    whole = play(ToolAgentLoop, ROW, [call] * 3 + ["done"], plan=plan())
    num_prompt = len(whole.engine.calls[0].prompt_ids)
    ends = [len(whole.record.path_ids(turn.node)) - num_prompt for turn in whole.record.turns]
    starts = [len(asked.prompt_ids) - num_prompt for asked in whole.engine.calls]
    for length in (ends[0], starts[1], starts[1] + 3, ends[1] - 1, ends[2], starts[3] + 1):
        played = play(ToolAgentLoop, ROW, [call] * 3 + ["done"], plan=plan(response_length=length))
        longest = max(len(played.record.path_ids(turn.node)) for turn in played.record.turns)
        assert longest - num_prompt <= length
        for asked in played.engine.calls:
            assert asked.sampling.max_new_tokens == length - (len(asked.prompt_ids) - num_prompt) > 0
        assert played.scored.metrics["truncated"] == 1 and played.scored.outcome.kind == "ok"


def test_a_prompt_that_is_too_long_is_not_cut(play: Play, plan: Callable[..., Config]) -> None:
    """A part of a prompt says something else: the episode fails, by name."""
    with pytest.raises(UserError, match=r"rollout\.prompt_length=50; raise it"):
        play(ToolAgentLoop, ROW, ["never"], plan=plan(prompt_length=50))


def test_limits_of_the_episode_end_it_with_what_there_is(play: Play, plan: Callable[..., Config]) -> None:
    """A used up budget ends the loop, which scores what it has; a deadline is not met by returning."""
    answers = [says("add", a=1, b=1)] * 9
    played = play(ToolAgentLoop, ROW, answers, plan=plan(), limits=Limits(max_turns=2))
    assert played.scored.metadata["ended_by"] == "turn_limit" and played.scored.reward == 1.0
    played = play(ToolAgentLoop, ROW, answers, plan=plan(), context_length=len(played.engine.calls[1].prompt_ids))
    assert played.scored.metadata["ended_by"] == "context_length_exceeded" and len(played.record.turns) == 1
    with pytest.raises(AgentError, match="time is used up"):
        play(ToolAgentLoop, ROW, answers, plan=plan(), limits=Limits(deadline_at=0.0))


# ---- tools of a trajectory, and rewards


def test_a_tool_lives_as_long_as_its_trajectory(play: Play, tmp_path: Path) -> None:
    """Created with the row's arguments at its first call, scored and released once at the end; its reward counts where
    no function says another."""
    (tmp_path / "stateful_tool.py").write_text(STATEFUL)
    config = tmp_path / "tools.yaml"
    config.write_text(f"tools:\n- class_name: {tmp_path / 'stateful_tool.py'}:Solve\n  config: {{type: native}}\n")
    plan = configured(multi_turn=MultiTurnSettings(tool_config_path=str(config)))
    extra = {"need_tools_kwargs": True, "tools_kwargs": {"solve": {"create_kwargs": {"ground_truth": "4"}}}}
    answers = [says("solve", answer="5"), says("solve", answer="4"), "It is 4."]
    played = play(ToolAgentLoop, {**ROW, "extra_info": extra}, answers, plan=plan)
    import stateful_tool  # type: ignore[import-not-found]

    assert stateful_tool.LOG == ["create", "execute", "execute", "calc_reward", "release"]
    assert played.scored.reward == 1.0
    assert played.scored.metadata["tool_rewards"] == [-0.1, -0.1]
    assert played.scored.metadata["tool_scores"] == {"solve": 1.0}
    with pytest.raises(UserError, match="need_tools_kwargs is true and the row has no"):
        play(ToolAgentLoop, {**ROW, "extra_info": {"need_tools_kwargs": True}}, ["never"], plan=plan)


def test_rows_may_name_a_user_where_the_run_has_none(play: Play, plan: Callable[..., Config]) -> None:
    """verl's script for GSM8K with tools writes `interaction_kwargs` without a name; verl reads them beside a file of
    simulated users alone."""
    row = {**ROW, "extra_info": {"interaction_kwargs": {"query": "2 + 3", "ground_truth": "5"}}}
    assert play(ToolAgentLoop, row, ["ok"], plan=plan()).texts == ["ok"]


def test_a_step_of_verls_signature_may_be_replaced(play: Play, plan: Callable[..., Config]) -> None:
    """`_call_tool` is given the call, the row's arguments of tools and the trajectory, and may return verl's tuple."""

    class Own(ToolAgentLoop):
        async def _call_tool(self, tool_call: Any, tools_kwargs: Any, agent_data: Any) -> Any:
            given.append((tool_call.name, dict(tools_kwargs), len(agent_data.turns)))
            return ToolResponse(text="7"), 0.0, {}

    given: list[tuple[str, dict[str, Any], int]] = []
    played = play(Own, {"prompt": ROW["prompt"]}, [says("add", a=1, b=2), "done"], plan=plan())
    assert given == [("add", {}, 1)] and played.texts[-1] == "done"
    assert played.scored.outcome.kind == "ok"


def test_a_row_selects_its_tools(play: Play, plan: Callable[..., Config]) -> None:
    played = play(ToolAgentLoop, {**ROW, "extra_info": {"tool_selection": ["add"]}}, ["ok"], plan=plan())
    assert [tool.name for tool in played.record.turns[0].tools] == ["add"]


def test_the_reward_function_reads_what_the_model_wrote_alone(play: Play, tmp_path: Path) -> None:
    """A tool that prints the solution earns nothing; rewards of tools and the messages are there to be read."""
    (tmp_path / "own_tools.py").write_text(TOOLS)
    (tmp_path / "own_score.py").write_text(
        "async def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    roles = [message['role'] for message in extra_info['messages']]\n"
        "    assert roles == ['user', 'assistant', 'tool', 'assistant']\n"
        "    assert extra_info['tool_rewards'] == [0.0] and extra_info['truncated'] is False\n"
        "    return ground_truth in solution_str\n"
    )
    plan = configured(
        multi_turn=MultiTurnSettings(function_tool_path=str(tmp_path / "own_tools.py")),
        reward=RewardSettings(custom_reward_function={"path": str(tmp_path / "own_score.py")}),
    )
    row = {**ROW, "reward_model": {"style": "rule", "ground_truth": "55"}}
    assert play(ToolAgentLoop, row, [says("add", a=50, b=5), "I cannot say."], plan=plan).scored.reward == 0.0
    assert play(ToolAgentLoop, row, [says("add", a=50, b=5), "It is 55."], plan=plan).scored.reward == 1.0


def test_the_format_of_calls_is_the_models_parser(plan: Callable[..., Config]) -> None:
    """The one that the user names, whatever the template shows; two that differ are an error at the start."""
    assert plan(format="qwen3-coder").model.tool_parser == "qwen3_coder"
    assert load_config(None, ["actor_rollout_ref.rollout.multi_turn.format=gpt-oss"]).model.tool_parser == "gpt_oss"
    assert plan().model.tool_parser == plan(format="auto").model.tool_parser == "auto"
    with pytest.raises(ConfigError, match=r"format='kimi' and model.tool_parser='hermes' say different things"):
        load_config(None, ["rollout.multi_turn.format=kimi", "model.tool_parser=hermes"])


def test_an_answer_that_was_cut_ended_by_its_limit(play: Play, plan: Callable[..., Config]) -> None:
    """Not by having been given."""
    play.sampling = replace(play.sampling, max_new_tokens=2)
    row = {**ROW, "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "7"}}
    played = play(ToolAgentLoop, row, ["a long answer of many tokens"], plan=plan())
    assert played.scored.metadata["ended_by"] == "max_new_tokens" and played.scored.metrics["truncated"] == 1
    play.sampling = replace(play.sampling, max_new_tokens=None)
    played = play(ToolAgentLoop, row, ["a long answer of many tokens"], plan=configured(response_length=3))
    assert played.scored.metadata["ended_by"] == "response_length"


class Own(ToolAgentLoop):
    """Overrides a step as verl's users do."""

    async def _handle_generating_state(
        self, agent_data: Any, sampling_params: Any, ignore_termination: bool = False
    ) -> Any:
        agent_data.extra_fields["asked"] = agent_data.extra_fields.get("asked", 0) + 1
        return await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)


def test_a_step_with_verls_signature_can_be_overridden(play: Play, plan: Callable[..., Config]) -> None:
    """`ignore_termination` among it."""
    row = {**ROW, "agent_name": None, "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "7"}}
    played = play(Own, row, [says("add", a=3, b=4), "#### 7"], plan=plan())
    assert played.scored.reward == 1.0 and played.scored.metadata["asked"] == 2


# ---- simulated users

USER = """
from ludus.compat.verl.interaction import BaseInteraction

LOG = []


class GuessInteraction(BaseInteraction):
    async def start_interaction(self, instance_id=None, secret=0, **kwargs):
        LOG.append("start")
        self.secret = secret
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        guess = messages[-1]["content"]
        if guess == str(self.secret):
            return True, "Right!", 1.0, {}
        return False, "Higher." if int(guess) < self.secret else "Lower.", -0.25, {}

    async def finalize_interaction(self, instance_id, **kwargs):
        LOG.append("finalize")
"""


@pytest.fixture
def users(tmp_path: Path) -> Callable[..., Config]:
    (tmp_path / "some_users.py").write_text(USER)
    path = tmp_path / "users.yaml"
    path.write_text(f"interaction:\n- class_name: {tmp_path / 'some_users.py'}:GuessInteraction\n  config: {{}}\n")

    def make(**turns: Any) -> Config:
        return configured(multi_turn=MultiTurnSettings(interaction_config_path=str(path), **turns))

    return make


def test_a_simulated_user_answers_until_it_is_content(play: Play, users: Callable[..., Config]) -> None:
    """What it says are the user's messages; what it gives each answer adds up to the reward."""
    row = {**ROW, "extra_info": {"interaction_kwargs": {"name": "guess", "secret": 7}}}
    played = play(ToolAgentLoop, row, ["3", "9", "7", "never"], plan=users())
    assert [message.content for message in observations(played)] == ["Higher.", "Lower."]
    assert played.scored.metadata["turn_scores"] == [-0.25, -0.25, 1.0] and played.scored.reward == 0.5
    assert played.scored.metadata["ended_by"] == "user" and played.scored.metrics["truncated"] == 0
    assert [span.name for span in played.spans] == ["guess"] * 3
    assert played.scored.metrics["num_turns"] == 7  # with the first message, and the user's last word
    import some_users  # type: ignore[import-not-found]

    assert some_users.LOG[-2:] == ["start", "finalize"]


def test_verls_teacher_of_gsm8k(play: Play, tmp_path: Path) -> None:
    """It says what is wrong until the number behind the mark is right, and scores each answer."""
    path = tmp_path / "teacher.yaml"
    path.write_text("interaction:\n- class_name: ludus.compat.verl.interactions.gsm8k_interaction.Gsm8kInteraction\n")
    plan = configured(multi_turn=MultiTurnSettings(interaction_config_path=str(path)))
    row = {**ROW, "extra_info": {"interaction_kwargs": {"name": "gsm8k", "ground_truth": "72"}}}
    played = play(ToolAgentLoop, row, ["#### 71", "72", "#### 72", "never"], plan=plan)
    first, _ = observations(played)
    assert "incorrect" in str(first.content) and played.scored.metadata["turn_scores"] == [0.0, 0.0, 1.0]
    assert played.scored.reward == 1.0
    with pytest.raises(UserError, match="needs `ground_truth`"):
        play(ToolAgentLoop, {**ROW, "extra_info": {"interaction_kwargs": {"name": "gsm8k"}}}, ["#### 72"], plan=plan)


def test_the_last_answer_allowed_is_scored_too(play: Play, users: Callable[..., Config]) -> None:
    row = {**ROW, "extra_info": {"interaction_kwargs": {"secret": 7}}}
    played = play(ToolAgentLoop, row, ["3", "9", "7"], plan=users(max_assistant_turns=2))
    assert played.scored.metadata["turn_scores"] == [-0.25, -0.25]
    assert played.scored.metadata["ended_by"] == "max_assistant_turns"


def test_an_unknown_user_is_named(play: Play, users: Callable[..., Config]) -> None:
    row = {**ROW, "extra_info": {"interaction_kwargs": {"name": "gues"}}}
    with pytest.raises(UserError, match="asks for the interaction 'gues'; did you mean 'guess'"):
        play(ToolAgentLoop, row, ["3"], plan=users())


def test_a_user_that_says_something_else_is_named(play: Play, users: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text(
        "from ludus.compat.verl import BaseInteraction\n"
        "class Mute(BaseInteraction):\n"
        "    async def generate_response(self, instance_id, messages, **kwargs):\n"
        "        return 'what'\n"
    )
    path = tmp_path / "mute.yaml"
    path.write_text(f"interaction:\n- {{class_name: '{tmp_path / 'mute.py'}:Mute', name: mute}}\n")
    plan = configured(multi_turn=MultiTurnSettings(interaction_config_path=str(path)))
    row = {**ROW, "extra_info": {"interaction_kwargs": {"name": "mute"}}}
    with pytest.raises(UserError, match="generate_response of mute returned 'what'; allowed:"):
        play(ToolAgentLoop, row, ["3"], plan=plan)
    path.write_text("interaction:\n- {class_name: 'pathlib:Path'}\n")
    with pytest.raises(ConfigError, match="must be a subclass of BaseInteraction"):
        play(ToolAgentLoop, row, ["3"], plan=plan)


def test_a_tool_of_verls_is_told_its_place_here(tmp_path: Path) -> None:
    """A file of tools that names the original's class."""
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: verl.tools.gsm8k_tool.Gsm8kTool}]")
    plan = configured(multi_turn=MultiTurnSettings(tool_config_path=str(tmp_path / "tools.yaml")))
    with pytest.raises(UserError, match=r"here it is 'ludus\.compat\.verl\.tools\.gsm8k_tool\.Gsm8kTool'"):
        LoopResources.load(plan)


def test_a_step_of_ones_own_reads_the_limits_by_verls_names(play: Play) -> None:
    class Bounded(ToolAgentLoop):
        async def _handle_generating_state(
            self, data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
        ) -> AgentState:
            assert (self.prompt_length, self.response_length, self.max_parallel_calls) == (128, 64, 2)
            assert (self.max_user_turns, self.max_assistant_turns, self.max_tool_response_length) == (None, 3, 256)
            assert self.tool_response_truncate_side == "left"
            return await super()._handle_generating_state(data, sampling_params, ignore_termination)

    turns = MultiTurnSettings(max_parallel_calls=2, max_assistant_turns=3, tool_response_truncate_side="left")
    plan = configured(multi_turn=turns, prompt_length=128, response_length=64)
    row = {**ROW, "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "7"}}
    assert play(Bounded, row, ["#### 7"], plan=plan).scored.reward == 1.0


# Thinking is shown in the last message alone.
FORGETS = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.reasoning_content and loop.last %}<think>
{{ m.reasoning_content }}
</think>

{% endif -%}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def test_thinking_that_is_shown_no_more_begins_a_path(play: Player, plan: Callable[..., Config]) -> None:
    """The recorder's path is gone on with, and one output for each path is trained whole."""
    template = ChatTemplate(FORGETS, play.text.tokenizer.special_tokens)
    play.text = replace(play.text, template=template, parser=parser_for(FORGETS, "hermes"))
    call = f"<think>\nAdd them.\n</think>\n\n{says('add', a=2, b=3)}"
    played = play(ToolAgentLoop, {"prompt": ROW["prompt"]}, [call, call, "done"], plan=plan())
    assert [turn.fork for turn in played.record.turns] == [None, "reasoning_stripped", "reasoning_stripped"]
    assert played.scored.metrics["num_outputs"] == 3 and not played.scored.left_out
    shown = play.text.tokenizer.decode(played.engine.calls[2].prompt_ids)
    assert "Add them." not in shown and shown.count("<|im_start|>tool\n5") == 2
    assert played.scored.outcome.kind == "ok" and played.scored.metadata["tool_rewards"] == [0.0, 0.0]
