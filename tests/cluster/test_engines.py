"""The engines of a run: what servers that run already are given before they sample for it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import ludus
from ludus.api.engines import open_engines
from ludus.cluster.cluster import Cluster
from ludus.engines.lease import ComputeLease
from ludus.engines.scripted import ScriptedEngine
from ludus.models.load import load_model
from ludus.text.tokenizer import Tokenizer
from tests.engines.contract import NoNewWeights, call
from tests.engines.http.test_client import answer, serving


def test_a_used_server_beside_a_fresh_one_gets_the_runs_weights(tiny_model_folder: Path) -> None:
    """What it had of another run is replaced before it samples, and then both do."""
    tokenizer = Tokenizer.load(tiny_model_folder)

    async def scenario(urls: list[str]) -> None:
        settings = {"kind": "server", "urls": urls, "weights": "stream"}
        config = ludus.Config(model={"path": str(tiny_model_folder), "dtype": "float32"}, engine=settings)
        model = load_model(config.model)
        async with (
            AsyncExitStack() as stack,
            open_engines(config, model, tokenizer, ComputeLease(), Cluster(config, stack, is_run=False)) as engine,
        ):
            assert used.stats().version == 8
            asked = [replace(call(f"{n}"), session_id=f"{n}") for n in range(10)]
            answers = await asyncio.gather(*(engine.generate(one) for one in asked))
        assert {version for sampled in answers for version in sampled.versions} == {0}
        assert used.calls and fresh.calls

    used, fresh = (ScriptedEngine(answer, tokenizer) for _ in range(2))
    asyncio.run(used.publish(7, NoNewWeights()))
    with serving(used, tokenizer) as first, serving(fresh, tokenizer) as second:
        asyncio.run(scenario([first, second]))
