"""New games by the model of ART's tic-tac-toe: `ludus run held_out.py [GAMES]`, in its folder, before and after it
trained, with --model warm=FOLDER for what it began with."""

from __future__ import annotations

import asyncio
import random
import sys

import art

sys.path.insert(0, ".")
import rollout as example


async def main(num_games: int) -> None:
    random.seed(20_000)
    model = art.TrainableModel(name="llama-8b-007", project="tic-tac-toe", base_model="warm")
    async with art.LocalBackend() as backend:
        await model.register(backend)
        step = await model.get_step()
        games = [example.rollout(model, example.TicTacToeScenario(step=step)) for _ in range(num_games)]
        played = [
            each
            for each in await art.gather_trajectories(games, max_exceptions=1.0)
            if not isinstance(each, BaseException)
        ]
        won, invalid = (sum(each.metrics.get(name) == 1 for each in played) for name in ("win", "invalid_move"))
        print(f"step {step}: of {len(played)} games {won} won, {invalid} ended with an invalid move")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 192))
