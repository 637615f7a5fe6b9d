"""The check of the agent adapters passes, is the same for the same seed, and notices an agent that changes messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.checks.verify.doors import FAMILIES, FamilySetup, play_family, verify_doors
from ludus.checks.verify.families import LoopAgent, WorkflowAgent
from ludus.compat.verl.output import AgentLoopOutput
from ludus.types import Episode


class Trimming(WorkflowAgent):
    """Sends the user's last words without their question mark."""

    async def run(self, data: Mapping[str, Any], **injected: Any) -> float:
        *follow_ups, last = data["follow_ups"]
        return await super().run({**data, "follow_ups": [*follow_ups, last.rstrip("?")]}, **injected)


class Careless(LoopAgent):
    """Leaves the last token of the response out of its mask."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        output = await super().run(sampling_params, **kwargs)
        return output.model_copy(update={"response_mask": [*output.response_mask[:-1], 0]})


async def trimming(setup: FamilySetup) -> Sequence[Episode]:
    return await play_family(setup, Trimming)


async def careless(setup: FamilySetup) -> Sequence[Episode]:
    return await play_family(setup, Careless)


def test_every_family_teaches_the_same() -> None:
    """One hash; every sampled token is trained in each family; the seed decides which."""
    result = verify_doors(seed=3)
    body = result.to_json()
    assert result.ok and body["ok"] is True
    assert set(result.learned) == set(FAMILIES) and len({item.hash for item in result.learned.values()}) == 1
    assert all(item.ledger.trained == item.ledger.sampled > 0 for item in result.learned.values())
    some = {name: FAMILIES[name] for name in ("workflow", "queues")}
    again, other = verify_doors(seed=3, families=some), verify_doors(seed=4, families=some)
    assert again.ok and other.ok
    assert again.learned["queues"] == result.learned["queues"] != other.learned["queues"]


def test_a_difference_is_noticed() -> None:
    """Another character in the dialogue, or one token less in a mask."""
    for faulty in (trimming, careless):
        result = verify_doors(seed=3, families={"workflow": FAMILIES["workflow"], "faulty": faulty})
        assert not result.ok, faulty
        assert result.learned["workflow"].hash != result.learned["faulty"].hash
