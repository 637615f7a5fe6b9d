"""A model that Ludus serves, as the judge."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.recorder import Recorder
from ludus.gateway.in_process import InProcessGateway
from ludus.rewards.judge.ruler import ruler
from ludus.text.chat import ChatText

ANSWER = {"scores": [{"trajectory_id": str(i), "explanation": "so", "score": i / 4} for i in (2, 1)]}


def test_a_model_of_ones_own_is_a_judge(tokenizer_folder: Path) -> None:
    """Over the gateway's own address, its answer held to the schema while it is sampled."""
    text = ChatText.load(tokenizer_folder)
    engine = ScriptedEngine(lambda call: json.dumps(ANSWER), text.tokenizer)

    async def main(gateway: InProcessGateway) -> list[float]:
        async with gateway.open() as session:
            attempts = [[{"role": "assistant", "content": content}] for content in ("a", "b")]
            scores = await ruler(attempts, "default", {"api_base": session.base_url, "max_tokens": 2000})
            (turn,) = session.session.snapshot().turns
            assert turn.sampling.grammar is not None
            return [score.score for score in scores]

    with InProcessGateway(Recorder(engine, text)) as gateway:
        assert asyncio.run(main(gateway)) == [0.25, 0.5]
