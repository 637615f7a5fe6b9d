"""The check of the dialects passes, is the same for the same seed, and notices what a protocol loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ludus.checks.verify.agents import AGENTS, Called, CallResult, ChatAgent, MessagesAgent
from ludus.checks.verify.dialects import verify_dialects

SOME = {name: AGENTS[name] for name in ("chat", "responses by id streamed", "messages streamed")}


class Trimming(MessagesAgent):
    """A client that loses the blank at the end of what its tools say."""

    def hand_in(self, results: Sequence[CallResult]) -> list[Called]:
        return super().hand_in([CallResult(each.call_id, each.text.rstrip("."), each.is_error) for each in results])


class Forgetful(ChatAgent):
    """A client that sends calls back without their text."""

    def _send(self, messages: Sequence[Any]) -> list[Called]:
        for message in self._messages:
            if not isinstance(message, dict) and message.tool_calls:
                message.content = None
        return super()._send(messages)


def test_every_protocol_records_the_same() -> None:
    """Eight agents, six turns each: one record. The seed decides it."""
    result = verify_dialects(seed=3)
    body = result.to_json()
    assert result.ok and body["identical"] is True and body["different"] == []
    assert (body["agents"], body["turns"], set(result.traces)) == (8, 6, set(AGENTS))
    again, other = verify_dialects(seed=3, agents=SOME), verify_dialects(seed=4, agents=SOME)
    assert (again.ok, other.ok) == (True, True)
    assert again.to_json()["ids"] == body["ids"] != other.to_json()["ids"]


def test_a_difference_is_noticed_and_named() -> None:
    """A letter of a result, or the text beside a call, is enough; the agent is named."""
    result = verify_dialects(seed=3, agents={**SOME, "faulty": lambda url: Trimming(url, stream=False)})
    assert (result.ok, result.to_json()["different"]) == (False, ["faulty"])
    result = verify_dialects(seed=3, agents={**SOME, "faulty": lambda url: Forgetful(url, stream=False)})
    assert (result.ok, result.to_json()["different"]) == (False, ["faulty"])
