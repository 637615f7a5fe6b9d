"""A model that knows the form of a move: `ludus run warm.py [GAMES]`, in the folder of ART's tic-tac-toe.

It is trained on games of random legal moves by both sides, played with the example's own functions. Prints the folder
of the weights. Before, SmolLM2-135M named no legal move in its first games: equal rewards, of which nothing is learned.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
from typing import Any

import art

sys.path.insert(0, ".")
import rollout as example
from game_utils import apply_agent_move, check_winner, generate_game, get_opponent_move, render_board

_SYMBOL = "{game['agent_symbol']}"


def instructions(symbol: str) -> str:
    """What the example tells the model, for this player."""
    text = inspect.getsource(example.rollout)
    return text[text.index("You are a tic-tac-toe player") :].partition('",')[0].replace(_SYMBOL, symbol)


def opponent_moves(game: Any) -> None:
    row, column = get_opponent_move(game)  # any empty square
    game["board"][row][column] = game["opponent_symbol"]


def play() -> list[dict[str, str]]:
    game = generate_game()
    messages = [{"role": "system", "content": instructions(game["agent_symbol"])}]
    if game["agent_symbol"] == "o":
        opponent_moves(game)
    while check_winner(game["board"]) is None:
        row, column = get_opponent_move(game)
        move = f"<move>{chr(ord('A') + row)}{column + 1}</move>"
        messages += [{"role": "user", "content": render_board(game)}, {"role": "assistant", "content": move}]
        apply_agent_move(game, move)
        if check_winner(game["board"]) is None:
            opponent_moves(game)
    return messages


async def main(num_games: int) -> None:
    random.seed(7)
    model = art.TrainableModel(
        name="warm", project="tic_tac_toe", base_model="smollm2-135m", _internal_config={"model": {"lora": None}}
    )
    async with art.LocalBackend() as backend:
        await model.register(backend)
        games = [art.Trajectory(messages_and_choices=play()) for _ in range(num_games)]
        trained = await model.train_sft(games, art.TrainSFTConfig(learning_rate=1e-4, batch_size=4))
        print(trained.checkpoint_path)


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 384))
