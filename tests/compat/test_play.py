"""`ludus.play` knows every family's agents and rows where no configuration is given too, and which model answers."""

from pathlib import Path
from typing import Any

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


def test_models_that_nothing_trains_answer_as_they_are(tiny_model_folder: Path) -> None:
    """Where a model is only played its base is itself; names that it is to serve reach it, all others nothing."""

    async def agent(data: Any, *, base_url: str, http_client: Any) -> float:
        async def status(name: str) -> int:
            body = {"model": name, "messages": [{"role": "user", "content": "Guess."}], "max_tokens": 2}
            return int((await http_client.post(f"{base_url}/chat/completions", json=body)).status_code)

        for name in ("default", str(tiny_model_folder), "gpt-4o"):
            assert await status(name) == 200
        for name in ("default@0", "run", "o3"):
            assert await status(name) == 404
        return 1.0

    values: dict[str, Any] = {
        "model": {"path": str(tiny_model_folder), "dtype": "float32", "served_names": ["gpt-*"]},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 1},
    }
    (episode,) = ludus.play(agent, [{"question": "Guess."}], config=ludus.Config(**values))
    assert episode.outcome.kind == "ok", episode.outcome.reason
    assert len(episode.session.turns) == 3
