"""What a step is measured by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ludus.algorithms.base import LossInputs
from ludus.algorithms.metrics import replay_metrics as trained_metrics
from ludus.algorithms.pack import OWN, REPLAYED
from ludus.loop.evaluate import eval_metrics
from ludus.loop.measure import replay_metrics, rollout_metrics, speed_metrics
from ludus.rollout.groups import TakenGroups
from ludus.types import EngineStats, Episode, Group, Message, Node, Outcome, Sampled, Sampling, SessionRecord, Turn

FORKS = (None, "edit", "edit", "reasoning_stripped")


def test_forks_are_counted_by_reason() -> None:
    """Forked turns are counted for each reason, and as a share of all turns; without any, nothing is said of them."""
    sampled = Sampled((1,), (-0.1,), (0,), "stop")
    turns = tuple(
        Turn(f"t{idx}", 0, None, None if fork is None else "t0", fork, (), Message("assistant"), sampled, Sampling())
        for idx, fork in enumerate(FORKS)
    )

    def metrics(*turns: Turn) -> dict[str, float]:
        session = SessionRecord("s", (Node(None, (1,), "t0"),), turns)
        episode = Episode("e", "t", "g", session, {}, Outcome("ok"), reward=1.0)
        return rollout_metrics(TakenGroups((Group("g", "t", (episode,)),), ()))

    forked = {name: value for name, value in metrics(*turns).items() if "fork" in name}
    assert forked == {
        "rollout/fork_edit_turns": 2.0,
        "rollout/fork_reasoning_stripped_turns": 1.0,
        "rollout/forked_share": 0.75,
    }
    assert not any("fork" in name for name in metrics(turns[0]))


def test_calls_that_could_not_be_decoded_are_counted() -> None:
    """By call, not by turn."""
    sampled = Sampled((1,), (-0.1,), (0,), "stop")
    reply = Message("assistant", "<tool_call>{<tool_call>{")
    turn = Turn("t0", 0, None, None, None, (), reply, sampled, Sampling(), undecoded=("<tool_call>{",) * 2)
    episode = Episode("e", "t", "g", SessionRecord("s", (Node(None, (1,), "t0"),), (turn,)), {}, Outcome("ok"))
    assert rollout_metrics(TakenGroups((Group("g", "t", (episode,)),), ()))["rollout/undecoded_calls"] == 2.0


def test_each_source_has_its_share_and_means_of_its_own() -> None:
    """Three groups of one source and one of another, counted by hand; with one alone there is nothing to tell apart."""
    turn = Turn("t0", 0, None, None, None, (), Message("assistant"), Sampled((1,), (-0.1,), (0,), "stop"), Sampling())

    def group(number: int, source: str, *rewards: float) -> Group:
        session = SessionRecord("s", (Node(None, (1,), "t0"),), (turn,))
        episodes = tuple(
            Episode(f"e{idx}", "t", "g", session, {}, Outcome("ok"), reward=reward, metrics={"success": reward > 1})
            for idx, reward in enumerate(rewards)
        )
        return Group(f"g{number}", "t", episodes, source)

    groups = (
        group(0, "sums", 1.0, 2.0),
        group(1, "words", 0.0),
        group(2, "sums", 3.0, 4.0),
        group(3, "sums", 5.0, 3.0),
    )
    metrics = rollout_metrics(TakenGroups(groups, (), {"solved": 2, "hopeless": 0}))
    of_sums = {name: value for name, value in metrics.items() if name.endswith("/sums")}
    assert of_sums == {
        "rollout/share/sums": 0.75,
        "rollout/turns/sums": 1.0,
        "rollout/tokens/sums": 1.0,
        "rollout/truncated_share/sums": 0.0,
        "rollout/reward/sums": 3.0,
        "rollout/success/sums": pytest.approx(5 / 6),
    }
    assert metrics["rollout/reward/words"] == 0.0 and metrics["rollout/reward"] == pytest.approx(18 / 7)
    assert (metrics["data/skipped_solved"], metrics["data/skipped_hopeless"]) == (2.0, 0.0)
    alone = rollout_metrics(TakenGroups((group(0, "", 1.0),), ()))
    assert not any(name.count("/") > 1 or name.startswith("data/") for name in alone)


def test_what_is_measured_keeps_its_name() -> None:
    """An agent that reports a reward, turns or counts of its own changes no curve but those that are its own; a source
    has the reward of its sampled members, as the whole has."""
    turn = Turn("t0", 0, None, None, None, (), Message("assistant"), Sampled((1,), (-0.1,), (0,), "stop"), Sampling())
    session = SessionRecord("s", (Node(None, (1,), "t0"),), (turn,))
    own = {"reward": 100.0, "turns": 7.0, "episodes": 9.0, "share": 0.3, "tries": 4.0}
    episode = Episode("e", "t", "g", session, {}, Outcome("ok"), reward=1.0, metrics=own)
    greedy = replace(episode, reward=5.0, session=replace(session, turns=(replace(turn, sampling=Sampling(0.0)),)))
    metrics = rollout_metrics(TakenGroups((Group("g", "t", (episode, greedy), "sums"),), ()))
    assert (metrics["rollout/reward"], metrics["rollout/turns"], metrics["rollout/episodes"]) == (1.0, 1.0, 2.0)
    assert (metrics["rollout/reward/sums"], metrics["rollout/share/sums"]) == (1.0, 1.0)
    assert metrics["rollout/tries"] == metrics["rollout/tries/sums"] == 4.0
    held_out = eval_metrics((episode,))
    assert (held_out["eval/reward"], held_out["eval/turns"], held_out["eval/episodes"]) == (1.0, 1.0, 1.0)
    assert held_out["eval/tries"] == 4.0


def test_several_engines_sample_what_they_sample_together() -> None:
    """Four that are busy for all of ten seconds sample 4,000 tokens in these, 400 a second; one that is busy for half
    of them 200 a second of its own time."""
    before = EngineStats(version=0)
    seconds = {"rollout_s": 3.0, "step_s": 10.0, "train_s": 1.0, "num_row_tokens": 0}

    def speed(num_tokens: int, busy_s: float) -> float:
        after = EngineStats(version=0, num_sampled_tokens=num_tokens, busy_s=busy_s)
        return speed_metrics(before, after, **seconds)["rollout/tokens_per_s"]

    assert (speed(4_000, 40.0), speed(1_000, 5.0), speed(600, 0.0)) == (400.0, 200.0, 200.0)


def test_what_is_replayed_is_worth_its_effective_sample_size() -> None:
    """By hand: of 6 tokens 3 are replayed, of weights 2, 1 and 0.5: (7/6)^2 / (5.25/3) = 7/9 of so many fresh ones."""
    sampled = Sampled((1, 1), (-0.1,) * 2, (3, 4), "stop")
    turn = Turn("t0", 0, None, None, None, (), Message("assistant"), sampled, Sampling())
    episode = Episode(
        "e", "t", "g", SessionRecord("s", (Node(None, (1, 1), "t0"),), (turn,)), {"t0": 1.0}, Outcome("ok")
    )
    taken = TakenGroups((), (), replayed=(Group("g", "t", (episode,)),))
    mu = torch.tensor([-1.0, -1.0, -2.0, -3.0, -4.0, -5.0])
    prox = mu + torch.tensor([2.0, 1.0, 0.5, 1.0, 7.0, 7.0]).log()
    origins = torch.tensor([REPLAYED, REPLAYED, REPLAYED, OWN, OWN, OWN])
    inputs = LossInputs(prox - 1.0, mu, prox, None, mu, mu, origins_N=origins)
    seen = {f"train/{name}": float(each) for name, each in trained_metrics(inputs).items()}
    assert replay_metrics(taken, seen, version=5) == {
        "replay/groups": 1.0,
        "replay/age_versions": 1.5,
        "replay/age_versions_max": 2.0,
        "replay/weight": pytest.approx(3.5 / 3),
        "replay/ess": pytest.approx(7 / 9),
    }
    assert replay_metrics(TakenGroups((), ()), {}, version=5) == {}
    assert trained_metrics(LossInputs(mu, mu, None, None, mu, mu)) == {}
