"""What a step is measured by."""

from __future__ import annotations

from ludus.loop.measure import rollout_metrics
from ludus.rollout.groups import TakenGroups
from ludus.types import Episode, Group, Message, Node, Outcome, Sampled, Sampling, SessionRecord, Turn

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
