"""An episode as bytes and back: what a record holds, and what stands in for what it does not hold."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

from ludus.runs.codec import decode_episode, encode_episode
from ludus.types import Episode, Span


def test_the_reward_of_the_episode_survives(full_episode: Episode) -> None:
    """What the agent returned is kept beside the rewards of turns; None stays None."""
    assert decode_episode(*encode_episode(full_episode)).reward == full_episode.reward == 0.1
    assert decode_episode(*encode_episode(replace(full_episode, reward=None))).reward is None


def test_that_rewards_are_returns_survives(full_episode: Episode) -> None:
    """Whether the agent discounted itself is kept; a record that does not say has rewards."""
    assert decode_episode(*encode_episode(replace(full_episode, has_returns=True))).has_returns
    text, numbers = encode_episode(full_episode)
    body = json.loads(text)
    del body["has_returns"]
    assert not decode_episode(json.dumps(body), numbers).has_returns


def test_a_record_without_the_reward_of_the_episode_is_read(full_episode: Episode) -> None:
    """The sum of the rewards of turns stands in for it."""
    text, numbers = encode_episode(full_episode)
    body = json.loads(text)
    del body["reward"]
    assert decode_episode(json.dumps(body), numbers).reward == sum(full_episode.rewards.values())


def test_a_span_that_cannot_be_copied_is_kept(full_episode: Episode) -> None:
    """What a tool was given and gave may be anything; what JSON does not know is its repr."""
    held = {"lock": threading.Lock(), "text": "a"}
    span = Span(kind="tool", name="t", started_at=0.0, finished_at=1.0, inputs=held, outputs=None, error=None)
    (kept,) = decode_episode(*encode_episode(replace(full_episode, spans=(span,)))).spans
    assert kept.inputs["text"] == "a" and "lock" in kept.inputs["lock"]
