"""The ready-made mathematicians: rewards, returns, feedback, and which bundles are wanted."""

from __future__ import annotations

import json

import pytest

from ludus.agents.environments.base import EnvironmentService
from ludus.compat.realhf.math_agents import MathMultiTurnAgent, MathSingleStepAgent, discounted
from ludus.compat.realhf.prompts import prompt_ids
from ludus.compat.tokenizer import load_hf_tokenizer
from ludus.errors import UserError
from ludus.types import Message


class Contains4(EnvironmentService):
    async def reset(self, seed=None, options=None):
        return None, {}

    async def step(self, action):
        _, answers = action
        return None, ["4" in answer for answer in answers], True, False, {}


def test_a_bundle_with_its_rewards(play):
    """Right is +1 and wrong is -1, less the bias, times the scale."""
    agent = MathSingleStepAgent({"n": 3}, reward_scaling=2.0, reward_bias=0.5)
    episode = play(agent, ["4", "5", "44"], kwargs={"env": Contains4()}).episode
    assert list(episode.rewards.values()) == [1.0, -3.0, 1.0]
    assert episode.metrics == {"success": pytest.approx(2 / 3)}


@pytest.mark.parametrize(("answers", "kind"), [(["4", "4"], "rejected"), (["5", "5"], "rejected"), (["4", "5"], "ok")])
def test_bundles_outside_the_band_are_rejected(play, answers, kind):
    """Too easy and too hard problems teach nothing."""
    agent = MathSingleStepAgent({"n": 2}, success_rate_lb=0.1, success_rate_ub=0.9)
    assert play(agent, answers, kwargs={"env": Contains4()}).episode.outcome.kind == kind


def test_turn_after_turn_with_feedback(play):
    """The answers stay as they were sampled, the feedback is a user's message, returns are discounted turn by turn."""
    agent = MathMultiTurnAgent(turn_level_discount=0.5, num_turns=3)
    played = play(agent, ["5", "6", "4"], kwargs={"env": Contains4()})
    episode, text = played.episode, played.text
    assert list(episode.rewards.values()) == [-1 - 0.5 - 0.25 + 2 * 0.25, -0.5, 1.0]
    assert episode.metrics == {"success": 1.0, "first_turn_success": 0.0}
    shown = text.tokenizer.decode(played.engine.calls[2].prompt_ids)
    assert shown == (
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n<|im_start|>user\nUnfortunately your "
        "answer is wrong. Let's try again.<|im_end|>\n<|im_start|>assistant\n6<|im_end|>\n<|im_start|>user\n"
        "Unfortunately your answer is wrong. Let's try again.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [turn.fork for turn in episode.session.turns] == [None] * 3


def test_all_turns_are_played_unless_success_is_the_end(play):
    """As the original does; `stop_on_success` ends with the first right answer."""
    episode = play(MathMultiTurnAgent(num_turns=3), ["4", "5", "4"], kwargs={"env": Contains4()}).episode
    assert len(episode.rewards) == 3
    agent = MathMultiTurnAgent(num_turns=3, stop_on_success=True)
    episode = play(agent, ["5", "4"], kwargs={"env": Contains4()}).episode
    assert len(episode.rewards) == 2 and episode.outcome.kind == "ok"


def test_feedback_after_an_answer_that_was_cut(text):
    """What closes the answer is shown only where the model did not sample it; no system message comes again."""
    said = "Hm."
    ended = (*text.tokenizer.encode("5"), *text.tokenizer.stop_ids)
    after_end = text.tokenizer.decode(text.follow_up_ids(ended, [Message("user", said)]))
    assert after_end == "\n<|im_start|>user\nHm.<|im_end|>\n<|im_start|>assistant\n"
    after_cut = text.tokenizer.decode(text.follow_up_ids(text.tokenizer.encode("5"), [Message("user", said)]))
    assert after_cut == "<|im_end|>" + after_end


def test_returns_to_go():
    """Each reward and the discounted return of the next."""
    assert discounted([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0] and discounted([], 0.5) == []


def test_answers_are_logged_where_a_folder_is_named(play, tmp_path):
    """A line for each answer, below the version that sampled it."""
    agent = MathMultiTurnAgent(num_turns=2, answer_save_path=str(tmp_path))
    play(agent, ["5", "4"], kwargs={"env": Contains4()})
    lines = [json.loads(line) for line in (tmp_path / "0" / "q1.jsonl").read_text().splitlines()]
    assert [(line["success"], line["answer"], line["reward"]) for line in lines] == [
        (False, "5", -1.0),
        (True, "4", 1.0),
    ]


def test_a_tokenizer_of_ones_own(play, tiny_models):
    """The model may be named, as in the original; without it the one that plays is used."""
    folder = str(tiny_models("llama"))
    agent = MathMultiTurnAgent(tokenizer_path=folder, num_turns=1)
    assert play(agent, ["4"], kwargs={"env": Contains4()}).episode.metrics["success"] == 1.0
    tokenizer = load_hf_tokenizer(folder)
    assert tokenizer is load_hf_tokenizer(folder) and tokenizer.pad_token_id is not None
    assert tokenizer.decode(tokenizer("2+2")["input_ids"]) == "2+2"


def test_what_cannot_be_is_refused():
    """Bounds in the wrong order, no turn."""
    with pytest.raises(UserError, match="success rates"):
        MathSingleStepAgent(success_rate_lb=0.9, success_rate_ub=0.1)
    with pytest.raises(UserError, match="num_turns=0"):
        MathMultiTurnAgent(num_turns=0)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"prompt": "<|im_start|>user\nHi"}, "<|im_start|>user\nHi"),
        ({"prompt": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}]}, None),
        ({"messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}]}, None),
    ],
)
def test_prompts_of_rows(text, row, shown):
    """A text is taken as it is, messages go through the template."""
    expected = shown or ("<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.tokenizer.decode(prompt_ids(row, text)) == expected


def test_a_row_without_a_prompt_is_named(text):
    """With its columns."""
    assert prompt_ids({"prompt_ids": [1, 2]}, text) == (1, 2)
    assert text.tokenizer.decode(prompt_ids({"question": "Hi"}, text)).endswith("Hi<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(UserError, match="it has answer"):
        prompt_ids({"answer": 1}, text)
