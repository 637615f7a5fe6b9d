"""`ludus.play` knows every family's agents and rows where no configuration is given too."""

import pytest

import ludus


class Blocks:
    """A rollout workflow of AReaL's, but for its `async`."""

    def arun_episode(self, engine, data):
        return 1.0


def test_agents_of_families_need_no_configuration():
    """The default configuration is that of `ludus.Config`: what is wrong is said before any model is loaded."""
    with pytest.raises(ludus.UserError, match=r"Blocks.arun_episode must be async"):
        ludus.play(Blocks, [{"question": "?"}])
