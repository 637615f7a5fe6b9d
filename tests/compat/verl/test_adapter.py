"""Agent loops as agents: which loop plays a row, what it is given, and what becomes of what it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.verl.base import AgentLoopBase, simple_timer
from ludus.compat.verl.output import AgentLoopMetrics, AgentLoopOutput, outputs_of
from ludus.compat.verl.registry import read_loops, register
from ludus.compat.verl.settings import RewardSettings
from ludus.compat.verl.single import SingleTurnAgentLoop
from ludus.errors import ConfigError, UserError
from tests.compat.verl.conftest import ReplayResult, configured

Play = Callable[..., ReplayResult]
ROW = {"prompt": [{"role": "user", "content": "Guess."}], "data_source": "test", "extra_info": {"index": 3}}


class Guess(AgentLoopBase):
    """Asks until it is told enough, as verl's users wrote loops in token ids."""

    def __init__(self, *args: Any, style: str = "plain", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.style = style

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        prompt_ids = self.tokenizer.apply_chat_template(kwargs["raw_prompt"], add_generation_prompt=True)
        ids, mask, metrics = list(prompt_ids), list[int](), dict[str, float]()
        for _ in range(2):
            with simple_timer("generate_sequences", metrics):
                answer = await self.server_manager.generate("r", prompt_ids=ids, sampling_params=sampling_params)
            ids += answer
            mask += [1] * len(answer)
            follow_up = [{"role": "user", "content": "higher"}]
            added = await self.apply_chat_template(follow_up, remove_system_prompt=True)
            if _ == 0:
                ids += added
                mask += [0] * len(added)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids[len(prompt_ids) :],
            response_mask=mask,
            reward_score=0.5,
            num_turns=4,
            metrics=AgentLoopMetrics.model_validate(metrics),
            extra_fields={"style": self.style},
        )


def test_a_loop_in_token_ids_is_one_path_of_the_record(play: Play) -> None:
    """The second turn goes on with the tokens of the first; the reward is that of the last turn."""
    played = play(Guess, ROW, ["10", "5"], kwargs={"style": "bold"})
    first, second = played.record.turns
    assert played.texts == ["10", "5"]
    assert second.prefix == first.id and second.follows == first.id
    assert played.scored.outcome.kind == "ok" and played.scored.rewards == {second.id: 0.5}
    assert played.scored.metadata == {"style": "bold"} and played.scored.metrics["num_turns"] == 4
    assert not played.scored.left_out


def test_the_prompt_is_what_a_chat_request_would_be(play: Play, text: Any) -> None:
    """A loop's own rendering and the recorder's are the same tokens, between turns too."""
    played = play(Guess, ROW, ["10", "5"])
    shown = text.tokenizer.decode(played.engine.calls[1].prompt_ids)
    assert shown == (
        "<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n10<|im_end|>\n"
        "<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"
    )


def test_masked_tokens_are_left_out(play: Play) -> None:
    """A sampled token with mask 0 is recorded, and not to be trained."""

    class Partly(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
            prompt_ids = await self.apply_chat_template(kwargs["raw_prompt"])
            answer = await self.server_manager.generate("r", prompt_ids=prompt_ids, sampling_params=sampling_params)
            mask = [0] + [1] * (len(answer) - 1)
            return AgentLoopOutput(prompt_ids=prompt_ids, response_ids=answer, response_mask=mask, reward_score=1)

    played = play(Partly, ROW, ["10"])
    (turn,) = played.record.turns
    assert played.scored.left_out == {turn.id: (0,)}


def test_tokens_that_nobody_sampled_fail_the_episode(play: Play) -> None:
    """What is marked must have been sampled there: nothing else can be trained."""

    class Forged(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
            prompt_ids = await self.apply_chat_template(kwargs["raw_prompt"])
            answer = await self.server_manager.generate("r", prompt_ids=prompt_ids, sampling_params=sampling_params)
            forged = [answer[0] + 1, *answer[1:]]
            return AgentLoopOutput(
                prompt_ids=prompt_ids, response_ids=forged, response_mask=[1] * len(forged), reward_score=1
            )

    with pytest.raises(UserError, match="did not sample it"):
        play(Forged, ROW, ["10"])


def test_several_outputs_have_rewards_of_their_own(play: Play) -> None:
    """Each output is a sequence of its own; one without a reward is led to by what follows it."""

    class Twice(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
            outputs = []
            for number, question in enumerate(("One?", "Two?")):
                prompt_ids = await self.apply_chat_template([{"role": "user", "content": question}])
                answer = await self.server_manager.generate("r", prompt_ids=prompt_ids, sampling_params=sampling_params)
                outputs.append(
                    AgentLoopOutput(
                        prompt_ids=prompt_ids,
                        response_ids=answer.token_ids,
                        response_mask=[1] * len(answer),
                        response_logprobs=answer.log_probs,
                        reward_score=float(number),
                    )
                )
            return outputs

    played = play(Twice, ROW, ["1", "2"])
    first, second = played.record.turns
    assert played.scored.rewards == {first.id: 0.0, second.id: 1.0}
    assert second.prefix is None, "the context was begun anew"
    assert played.scored.metrics["num_outputs"] == 2


@pytest.mark.parametrize("newest_first", [False, True])
def test_equal_outputs_keep_their_rewards_in_any_order(play: Play, newest_first: bool) -> None:
    """An output that was given the answer as it came knows its turn, though another turn has the same tokens."""

    class Votes(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
            prompt_ids = await self.apply_chat_template(kwargs["raw_prompt"])
            ask = partial(self.server_manager.generate, prompt_ids=prompt_ids, sampling_params=sampling_params)
            answers = [await ask("one"), await ask("two")]
            outputs = [
                AgentLoopOutput(
                    prompt_ids=prompt_ids,
                    response_ids=answer.token_ids,
                    response_mask=[1] * len(answer),
                    reward_score=float(number),
                )
                for number, answer in enumerate(answers)
            ]
            return outputs[::-1] if newest_first else outputs

    played = play(Votes, ROW, ["1", "1"])
    first, second = played.record.turns
    assert played.scored.rewards == {first.id: 0.0, second.id: 1.0}


def test_a_known_data_source_needs_no_function(play: Play) -> None:
    """Rows of GSM8K are scored by its own rule, on what the model wrote."""
    row = {**ROW, "data_source": "openai/gsm8k", "reward_model": {"style": "rule", "ground_truth": "42"}}
    played = play(SingleTurnAgentLoop, row, ["#### 42"])
    assert played.scored.reward == played.scored.metrics["success"] == 1.0
    assert play(SingleTurnAgentLoop, row, ["#### 41"]).scored.reward == 0.0


def test_an_edited_context_is_an_output_of_its_own(play: Play) -> None:
    """A loop that asks by messages and drops some makes a fork; `outputs_of` gives a sequence for each path, and no
    token is lost."""

    class Compacts(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
            messages: list[Any] = [{"role": "user", "content": "A long story."}]
            for question in ("One?", "Two?"):
                messages.append({"role": "user", "content": question})
                turn = await self.server_manager.complete(messages, sampling_params=sampling_params)
                messages.append(turn.reply)
            summary = [{"role": "user", "content": "A summary. Three?"}]
            await self.server_manager.complete(summary, sampling_params=sampling_params)
            outputs = outputs_of(self.server_manager.session.snapshot(), num_turns=6)
            outputs[-1].reward_score = 1
            return outputs

    played = play(Compacts, ROW, ["1", "2", "3"])
    first, second, third = played.record.turns
    assert second.prefix == first.id and third.prefix is None and third.fork == "truncated"
    assert played.scored.rewards == {third.id: 1.0} and not played.scored.left_out
    assert played.scored.metrics["num_outputs"] == 2


@pytest.mark.parametrize("reward", [True, 2, "numpy", float("nan")])
def test_a_reward_is_any_finite_number(reward: Any, play: Play) -> None:
    value = pytest.importorskip("numpy").float32(0.5) if reward == "numpy" else reward

    class Gives(SingleTurnAgentLoop):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
            output = await super().run(sampling_params, **kwargs)
            return output.model_copy(update={"reward_score": value})

    scored = play(Gives, ROW, ["10"]).scored
    if value != value:
        assert scored.outcome.kind == "failed" and "nan" in scored.outcome.reason
    else:
        assert scored.reward == float(value)


# ---- which loop


def test_rows_without_a_name_are_played_by_the_single_turn_agent(play: Play, tmp_path: Path) -> None:
    """`single_turn_agent` is the default; the run's reward function scores what the model wrote."""
    (tmp_path / "score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info, strict=False):\n"
        "    assert data_source == 'test' and extra_info['num_turns'] == 2 and extra_info['index'] == 3 and strict\n"
        "    return {'score': float(solution_str == ground_truth), 'acc': 1, 'note': 'as text'}\n"
    )
    named = {"path": str(tmp_path / "score.py"), "reward_kwargs": {"strict": True}}
    plan = configured(reward=RewardSettings(custom_reward_function=named))
    row = {**ROW, "reward_model": {"ground_truth": "7"}}
    played = play(SingleTurnAgentLoop, row, ["7"], plan=plan)
    assert played.scored.reward == 1.0 and played.texts == ["7"]
    assert played.scored.metrics["success"] == played.scored.metrics["acc"] == 1.0
    assert played.scored.metadata["note"] == "as text"
    (span,) = played.spans
    assert (span.kind, span.name) == ("reward", "compute_score") and span.outputs["score"] == 1.0


def test_the_row_picks_the_loop(play: Play) -> None:
    """`agent_name` names a registered loop, whatever the default is."""

    @register("test_guess")
    class Registered(Guess):
        pass

    played = play(SingleTurnAgentLoop, {**ROW, "agent_name": "test_guess"}, ["10", "5"])
    assert played.scored.reward == 0.5


def test_an_unknown_name_is_an_error_that_names_the_nearest(play: Play) -> None:
    with pytest.raises(UserError, match="no agent loop 'tool_agnt'; did you mean 'tool_agent'"):
        play(SingleTurnAgentLoop, {**ROW, "agent_name": "tool_agnt"}, ["10"])


def test_a_yaml_names_loops_and_their_arguments(play: Play, tmp_path: Path) -> None:
    """`_target_` is the class, all other keys go into its constructor; the file stands in front of what code says."""
    path = tmp_path / "loops.yaml"
    path.write_text("- name: bold\n  _target_: tests.compat.verl.test_adapter.Guess\n  style: bold\n")
    plan = configured(default_agent_loop="bold", agent_loop_config_path=str(path))
    played = play(SingleTurnAgentLoop, {**ROW, "agent_name": "bold"}, ["10", "5"], plan=plan)
    assert played.scored.metadata["style"] == "bold"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("name: a", "must hold a list"),
        ("- name: a", "must have a `name` and a `_target_`"),
        ("- {name: a, _target_: tests.compat.verl.test_adapter.Gues}", "did you mean 'Guess'"),
        ("- {name: a, _target_: verl.experimental.agent_loop.ToolAgentLoop}", "'ludus.compat.verl.experimental"),
        ("- {name: a, _target_: pathlib.Path}", "must be a subclass of AgentLoopBase"),
        (
            "- {name: a, _target_: tests.compat.verl.test_adapter.Guess, x: {_target_: b}}",
            "has a `_target_` of its own",
        ),
    ],
)
def test_what_is_wrong_in_the_yaml_is_named(entry: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "loops.yaml"
    path.write_text(entry)
    with pytest.raises(ConfigError, match=message):
        read_loops(path)


def test_another_class_of_a_name_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The last class that is registered counts, as in verl, and the log says so."""
    register("test_same")(Guess)
    with caplog.at_level(logging.WARNING):
        register("test_same")(Guess)
        assert not caplog.records
        register("test_same")(SingleTurnAgentLoop)
    assert "test_same" in caplog.text and "SingleTurnAgentLoop" in caplog.text


# ---- what a loop is given


def test_a_loop_is_given_the_row_and_the_configuration(play: Play) -> None:
    """The columns are keyword arguments; the oldest loops get `messages`; arrays of a table are lists."""
    numpy = pytest.importorskip("numpy")
    seen: dict[str, Any] = {}

    class Looks(Guess):
        async def run(self, messages: Any, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:  # type: ignore[override]
            seen.update(kwargs, messages=messages, sampling=sampling_params, config=self.config)
            return await super().run(sampling_params, **kwargs)

    plan = configured(response_length=64)
    extra = {"index": 3, "tools_kwargs": {"a": {"create_kwargs": {"x": numpy.array([1, 2])}, "b": None}}}
    row = {"prompt": numpy.array([{"role": "user", "content": "Guess.", "name": None}], dtype=object)}
    play(Looks, {**row, "extra_info": extra, "split": "test"}, ["10", "5"], plan=plan)
    assert seen["messages"] == seen["raw_prompt"] == [{"role": "user", "content": "Guess."}]
    assert seen["tools_kwargs"] == {"a": {"create_kwargs": {"x": [1, 2]}}}
    assert seen["split"] == "test" and seen["uid"] == "g0" and seen["index"] == 3
    assert seen["sampling"] == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
    }
    config = seen["config"]
    assert (
        config.actor_rollout_ref.rollout.response_length == 64
        and config.data.max_response_length == config["data"]["max_response_length"] == 64
    )
    assert config.actor_rollout_ref.rollout.multi_turn.get("max_parallel_calls") == 1
    with pytest.raises(AttributeError, match="did you mean 'response_length'"):
        _ = config.actor_rollout_ref.rollout.respons_length


def test_a_loop_is_given_only_what_it_takes(play: Play) -> None:
    """Without `**kwargs` the columns that it names; a column that the run gives itself is refused."""

    class Narrow(Guess):
        async def run(self, sampling_params: dict[str, Any], raw_prompt: Any) -> AgentLoopOutput:  # type: ignore[override]
            return await super().run(sampling_params, raw_prompt=raw_prompt)

    assert play(Narrow, {**ROW, "more": 1}, ["10", "5"]).scored.reward == 0.5
    with pytest.raises(UserError, match="the row has a column 'sampling_params'"):
        play(Narrow, {**ROW, "sampling_params": {}}, ["10", "5"])


def test_init_class_is_called_before_each_object_and_begins_anew_with_each_run(play: Play) -> None:
    """Heavy work stands behind `_class_initialized`, which is false again in the next run."""
    built: list[int] = []

    class Heavy(Guess):
        @classmethod
        def init_class(cls, config: Any, tokenizer: Any, **kwargs: Any) -> None:
            if not cls._class_initialized:
                cls._class_initialized = True
                built.append(config.actor_rollout_ref.rollout.response_length)

    for length in (64, 65):
        play(Heavy, [ROW, ROW], ["10", "5"] * 2, plan=configured(response_length=length))
    assert built == [64, 65]


def test_the_response_is_full_before_a_request_is_made(play: Play) -> None:
    """No token is sampled behind `response_length`: what does not fit is not asked for."""
    seen: list[Any] = []

    class Greedy(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
            prompt_ids = await self.apply_chat_template(kwargs["raw_prompt"])
            ids = list(prompt_ids)
            for _ in range(3):
                answer = await self.server_manager.generate("r", prompt_ids=ids, sampling_params=sampling_params)
                seen.append((len(answer), answer.stop_reason))
                ids += answer
            response = ids[len(prompt_ids) :]
            return AgentLoopOutput(
                prompt_ids=prompt_ids, response_ids=response, response_mask=[1] * len(response), reward_score=1
            )

    endless = [5] * 6
    played = play(Greedy, ROW, [endless, endless, endless], plan=configured(response_length=10))
    assert [reason for _, reason in seen] == ["stop", "length", "length"]
    assert sum(length for length, _ in seen) == 10 and seen[2][0] == 0
    assert played.record.num_sampled_tokens == 10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temprature": 1}, "unknown 'temprature'; did you mean 'temperature'"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_sampling_parameters_are_checked(given: dict[str, Any], message: str, play: Play) -> None:
    class Asks(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            return await self.server_manager.generate("r", prompt_ids=[5], sampling_params=given)

    with pytest.raises(Exception, match=message):
        play(Asks, ROW, ["10"])


# ---- what is refused


def test_what_is_no_loop_is_refused_by_name(play: Play) -> None:
    class NoRun(AgentLoopBase):
        pass

    class Wrong(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            return 1.0

    with pytest.raises(UserError, match="NoRun has no"):
        play(NoRun, ROW, [])
    with pytest.raises(UserError, match="returned a float; allowed: an AgentLoopOutput"):
        play(Wrong, ROW, [])
    with pytest.raises(UserError, match="the row has no prompt"):
        play(SingleTurnAgentLoop, {"question": "x"}, [])
    with pytest.raises(UserError, match="nothing says what this trajectory is worth"):
        play(SingleTurnAgentLoop, ROW, ["10"])


def test_none_rejects_the_episode(play: Play) -> None:
    class Rejects(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            return None

    assert play(Rejects, ROW, []).scored.outcome.kind == "rejected"


def test_a_row_whose_prompt_is_too_long_is_left_out_where_that_is_asked(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """As verl drops it from its data: no loop sees it, no token is sampled, and a warning says so once."""
    long = {**ROW, "prompt": [{"role": "user", "content": "Guess. " * 40}]}
    asked = configured(prompt_length=64, filter_overlong_prompts=True)
    left_out = play(Verls, [long, long], [], plan=asked).scored
    assert left_out.outcome.kind == "rejected"
    (said,) = (each for each in caplog.messages if "are left out" in each)
    assert said.endswith(str(left_out.metadata["left_out"])) and "rollout.prompt_length=64" in said
    assert play(Verls, ROW, ["10"], plan=asked).scored.reward == 1.0


def test_outputs_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="response_ids has 2 tokens and response_mask 1"):
        AgentLoopOutput(prompt_ids=[1], response_ids=[1, 2], response_mask=[1])


class Verls(AgentLoopBase):
    """What loops of verl's own read of their base, in the words of several releases."""

    def __init__(self, trainer_config: Any, data_config: Any, **kwargs: Any) -> None:
        super().__init__(trainer_config, data_config=data_config, **kwargs)
        assert data_config.config.max_prompt_length == self.data_config.max_prompt_length == 64

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        media = await self.process_vision_info(messages)
        assert media == await self.process_multi_modal_info(messages) == {}
        prompt_ids = await self.apply_chat_template(messages, None, media.get("images"), media.get("videos"))
        with pytest.raises(UserError, match="images cannot be given"):
            await self.apply_chat_template(messages, images=["a picture"])
        assert self.system_prompt == self.tokenizer.apply_chat_template([{}]) and self.apply_chat_template_kwargs == {}
        answer = await self.server_manager.generate("r", prompt_ids=prompt_ids, sampling_params=sampling_params)
        mask = [1] * len(answer)
        return AgentLoopOutput(prompt_ids=prompt_ids, response_ids=answer, response_mask=mask, reward_score=1.0)


def test_what_loops_of_verls_read_of_their_base_is_there(play: Play) -> None:
    """`data_config` wrapped, pictures that nobody sent, the template's arguments, what it writes at first."""
    assert play(Verls, ROW, ["10"], plan=configured(prompt_length=64)).scored.reward == 1.0
