"""What a process of a run makes of the configuration that it is given."""

from __future__ import annotations

import pytest

from ludus.cluster.roles import _on_own_cards
from ludus.config import load_config


@pytest.mark.parametrize(("head", "own"), [("cuda:1", "cuda"), ("cuda", "cuda"), ("auto", "auto"), ("cpu", "cpu")])
def test_a_role_computes_on_the_first_of_its_own_cards(head: str, own: str) -> None:
    """The head's `cuda:1` is a number among the head's cards; a process that was given one card has no second."""
    config = load_config(overrides=[f"model.device={head}", "model.context_length=64"])
    assert _on_own_cards(config).model == config.model.model_copy(update={"device": own})
