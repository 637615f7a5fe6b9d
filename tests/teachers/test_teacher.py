"""What a teacher is asked, and what is made of its answers: paths, hints, both sides of a gap, engines that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ludus.engines.lease import ComputeLease
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.graph import SessionGraph
from ludus.errors import BackendError, ConfigError, UserError
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.teachers.base import ScoredPath
from ludus.teachers.engine import EngineScorer
from ludus.teachers.hints import Hints, with_hint
from ludus.teachers.model import ModelScorer
from ludus.teachers.settings import HintSettings, PolicyTeacherSettings
from ludus.teachers.teacher import Teacher
from ludus.text.chat import ChatText
from ludus.types import Episode, Message, Outcome, Sampled, Sampling

PLAIN = Sampling()
ASKED = (Message("user", "go"),)


class Rule:
    """A scorer by a rule of the token and its place: -(token + 0.01 place + bias). Remembers what it was asked."""

    def __init__(self, bias: float = 0.0) -> None:
        self.asked: list[ScoredPath] = []
        self._bias = bias

    async def score(self, paths: Sequence[ScoredPath]) -> list[tuple[float, ...]]:
        self.asked += paths
        return [tuple(-(each.token_ids[i] + 0.01 * i + self._bias) for i in each.wanted) for each in paths]

    async def close(self) -> None: ...


def two_turns(
    *,
    sampling: Sampling = PLAIN,
    prompt: tuple[int, ...] = (1, 2),
    messages: tuple[Message, ...] = ASKED,
    six_by: int = 0,
) -> Episode:
    """1 2 [5 6] 3 [7], and another answer [8] to the first prompt; sampled with logprobs -1, -2, -3, -4 by weights 0,
    the 6 by weights `six_by`."""
    graph = SessionGraph("m0")

    def add(turn_id: str, prompt_ids: tuple[int, ...], before: str | None, ids: tuple[int, ...], *seen: float) -> None:
        graph.add_turn(
            turn_id=turn_id,
            prompt_ids=prompt_ids,
            prefix=before,
            follows=before,
            fork=None,
            messages=messages,
            reply=Message("assistant", "x"),
            sampled=Sampled(ids, seen, tuple(six_by if token == 6 else 0 for token in ids), "stop"),
            sampling=sampling,
        )

    add("a", prompt, None, (5, 6), -1.0, -2.0)
    add("b", (*prompt, 5, 6, 3), "a", (7,), -3.0)
    add("c", prompt, None, (8,), -4.0)
    return Episode("m0", "row0", "g0", graph.snapshot(), {"b": 1.0}, Outcome("ok"), 1.0)


ALL = {"a": (0, 1), "b": (0,), "c": (0,)}


def gaps_of(
    teacher: Teacher, episode: Episode, chosen: Mapping[str, Sequence[int]] = ALL, version: int = 0
) -> dict[str, Any]:
    return asyncio.run(teacher.gaps([episode], chosen, version=version))


def test_turns_on_one_path_are_scored_at_once() -> None:
    """Two paths for three turns; each token's gap is the teacher's logprob less the recorded one."""
    scorer, policy = Rule(), Rule()
    gaps = gaps_of(Teacher(scorer, policy), two_turns())
    assert scorer.asked == [ScoredPath((1, 2, 5, 6, 3, 7), (2, 3, 5)), ScoredPath((1, 2, 8), (2,))]
    assert policy.asked == []
    assert gaps["a"] == pytest.approx((-5.02 + 1.0, -6.03 + 2.0))
    assert gaps["b"] == pytest.approx((-7.05 + 3.0,)) and gaps["c"] == pytest.approx((-8.02 + 4.0,))


@pytest.mark.parametrize("changed", [{"temperature": 0.7}, {"top_p": 0.9}, {"presence_penalty": 1.0}, {"grammar": "x"}])
def test_what_was_not_drawn_from_the_bare_model_is_scored_on_both_sides(changed: dict[str, Any]) -> None:
    """The record has the logprob of another distribution: the policy is asked for its own at temperature 1."""
    policy = Rule(bias=0.5)
    gaps = gaps_of(Teacher(Rule(), policy), two_turns(sampling=Sampling(**changed)))
    assert len(policy.asked) == 2
    assert {round(gap, 9) for each in gaps.values() for gap in each} == {0.5}


def test_the_policys_side_is_of_the_weights_of_now() -> None:
    """Of turns of which other weights sampled a token, or another training all of them, though the numbers are equal;
    so where the policy of now is its teacher no token has an advantage, whoever sampled it."""
    policy = Rule()
    found = gaps_of(Teacher(Rule(), policy), two_turns(), version=1)
    assert len(policy.asked) == 2 and {gap for each in found.values() for gap in each} == {0.0}
    assert gaps_of(Teacher(Rule(), Rule(), is_offline=True), two_turns()) == found
    assert gaps_of(Teacher(Rule(), Rule()), two_turns(six_by=1), version=1) == found
    policy = Rule()
    found = gaps_of(Teacher(Rule(), policy), two_turns(six_by=1))
    assert [path.wanted for path in policy.asked] == [(2, 3)] and found["a"] == (0.0, 0.0) and found["b"] != (0.0,)


def test_tokens_that_are_not_trained_are_not_asked_for() -> None:
    """Of a turn the places that are named; a path ends with the last turn of which some are."""
    scorer = Rule()
    gaps = gaps_of(Teacher(scorer, scorer), two_turns(), {"a": (1,), "c": (0,)})
    assert scorer.asked == [ScoredPath((1, 2, 5, 6), (3,)), ScoredPath((1, 2, 8), (2,))]
    assert gaps["a"] == pytest.approx((-6.03 + 2.0,)) and gaps.keys() == {"a", "c"}
    assert gaps_of(Teacher(scorer, scorer), two_turns(), {}) == {}


@pytest.mark.parametrize("bias", [float("inf"), float("nan")])
def test_a_logprob_that_is_not_finite_is_named(bias: float) -> None:
    """By the teacher, the token, the turn and the row, before it is anybody's advantage."""
    with pytest.raises(UserError, match=r"Rule .* got (-inf|nan) of token 0 \(id 5\) of turn 'a', row 'row0'; take"):
        gaps_of(Teacher(Rule(bias), Rule()), two_turns())


# ---- hints


@pytest.fixture
def text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder)


def hinted(text: ChatText, row: Mapping[str, Any], **settings: Any) -> Hints:
    return Hints(HintSettings(column="answer", **settings), text, lambda _: row)


def test_a_hint_changes_the_prompt_and_no_answer_token(text: ChatText) -> None:
    """The first prompt on each path is rendered with it; what came after stays, token by token."""
    prompt = text.tokenizer.encode(text.template.render(ASKED))
    scorer = Rule()
    hints = hinted(text, {"answer": "42"}, template="{content} ({hint})")
    gaps_of(Teacher(scorer, Rule(), hints), two_turns(prompt=prompt))
    shown = text.tokenizer.encode(text.template.render([Message("user", "go (42)")]))
    assert shown != prompt
    at = len(shown)
    assert scorer.asked[0] == ScoredPath((*shown, 5, 6, 3, 7), (at, at + 1, at + 3))
    assert scorer.asked[1] == ScoredPath((*shown, 8), (at,))


@pytest.mark.parametrize("row", [{}, {"answer": None}, {"answer": ""}])
def test_a_row_without_a_hint_is_scored_without_one(row: dict[str, Any], text: ChatText) -> None:
    """Its prompt stays as it is."""
    scorer = Rule()
    gaps_of(Teacher(scorer, Rule(), hinted(text, row)), two_turns())
    assert scorer.asked[1] == ScoredPath((1, 2, 8), (2,))


def test_hints_that_cannot_be_shown_are_refused(text: ChatText) -> None:
    """A hint that is no text, a prompt that the template does not make, a conversation without the message."""
    with pytest.raises(UserError, match=r"'answer' of row0 must be a text, got int"):
        gaps_of(Teacher(Rule(), Rule(), hinted(text, {"answer": 42})), two_turns())
    with pytest.raises(UserError, match="turn 'a': it is not what the chat template makes"):
        gaps_of(Teacher(Rule(), Rule(), hinted(text, {"answer": "42"})), two_turns())
    with pytest.raises(UserError, match="no user's message"):
        with_hint([Message("system", "be good")], HintSettings(column="answer"), "42")


def test_a_hint_goes_into_the_message_that_is_named() -> None:
    """The first of its role; a system message that is not there is put in front."""
    settings = HintSettings(column="x", into="system", template="{content}\nKnown: {hint}")
    assert with_hint(ASKED, settings, "42") == (Message("system", "Known: 42"), *ASKED)
    told = (Message("system", "Be good."), *ASKED, Message("user", "more"))
    assert with_hint(told, settings, "42") == (Message("system", "Be good.\nKnown: 42"), *told[1:])
    users = HintSettings(column="x", template="{content}! {hint}")
    assert with_hint(told, users, "{42}")[1:] == (Message("user", "go! {42}"), Message("user", "more"))


def test_templates_and_kinds_are_checked_as_they_are_read() -> None:
    """A template without the hint, or with another field; a policy that would teach itself what it knows."""
    for template in ("{content}", "{hint} {row}", "{hint"):
        with pytest.raises(ConfigError, match="template"):
            HintSettings(column="x", template=template)
    with pytest.raises(ConfigError, match="nothing to teach itself"):
        PolicyTeacherSettings()
    assert PolicyTeacherSettings(weights="first").hint is None


# ---- engines


class Failing(ScriptedEngine):
    """Refuses the first scores that it is asked for."""

    failures = 0

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        if self.failures > 0:
            self.failures -= 1
            raise BackendError("connection refused")
        return tuple(float(-token) for token in token_ids[1:])


def engines(text: ChatText, *failures: int) -> list[Failing]:
    made = [Failing([], text.tokenizer, context_length=8) for _ in failures]
    for engine, number in zip(made, failures, strict=True):
        engine.failures = number
    return made


def test_where_one_engine_fails_the_next_is_asked(text: ChatText) -> None:
    """As often as all rounds last; then the error says who did not answer."""
    paths = [ScoredPath((1, 2, 3), (1, 2)), ScoredPath((1, 4), (1,))]
    scorer = EngineScorer(engines(text, 1, 0), "the teacher at x", is_own=True, pause_s=0.0)
    assert asyncio.run(scorer.score(paths)) == [(-2.0, -3.0), (-4.0,)]
    gone = EngineScorer(engines(text, 99, 99), "the teacher at x", is_own=True, pause_s=0.0)
    with pytest.raises(BackendError, match=r"the teacher at x did not answer in 4 rounds: connection refused"):
        asyncio.run(gone.score(paths))


def test_a_conversation_that_is_too_long_for_the_teacher_is_refused(text: ChatText) -> None:
    """Before anything is asked."""
    scorer = EngineScorer(engines(text, 99), "the teacher at x", is_own=True)
    with pytest.raises(UserError, match="context of 8 tokens, and a conversation to be scored has 9"):
        asyncio.run(scorer.score([ScoredPath((1,) * 9, (8,))]))


# ---- a model of one's own


def test_a_model_scores_as_transformers_does(tiny_model_folder: Path) -> None:
    """Paths with common beginnings, in one row and in several, against a plain forward pass; then it is given back."""
    paths = [ScoredPath((1, 9, 30, 7, 8), (2, 4)), ScoredPath((1, 9, 31), (2,)), ScoredPath((1, 9, 30, 7, 8), (1, 3))]
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)

    def expected(path: ScoredPath) -> list[float]:
        with torch.no_grad():
            logprobs = plain(torch.tensor([path.token_ids])).logits[0].log_softmax(-1)
        return [float(logprobs[index - 1, path.token_ids[index]]) for index in path.wanted]

    for row_tokens in (4, 64):
        model = load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32", device="cpu"))
        scorer = ModelScorer(model, lease=ComputeLease(), row_tokens=row_tokens)
        found = asyncio.run(scorer.score(paths))
        for path, logprobs in zip(paths, found, strict=True):
            assert logprobs == pytest.approx(expected(path), abs=1e-5)
        assert not any(parameter.requires_grad for parameter in model.module.parameters())
        with pytest.raises(UserError, match="the same vocabulary"):
            asyncio.run(scorer.score([ScoredPath((1, 10**6), (1,))]))
        with pytest.raises(UserError, match="a context of 512 tokens"):
            asyncio.run(scorer.score([ScoredPath((1,) * 600, (599,))]))
        asyncio.run(scorer.close())
        asyncio.run(scorer.close())
