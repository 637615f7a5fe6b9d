"""Counting games: in which steps, and from where. A fifth is held out."""

import random

STEPS = (1, 2, 10)
NUM_STARTS = 60


def all_games():
    games = [game(start, step) for step in STEPS for start in range(2 * step + 1, 2 * step + 1 + NUM_STARTS)]
    random.Random(5).shuffle(games)
    return games


def game(start, step):
    """The model sees how it goes: a number, the next one, and the one after that, which it is to go on from."""
    return {
        "query_id": f"{start}+{step}",
        "messages": [
            {"role": "system", "content": f"You count in steps of {step}. Reply with one number only."},
            {"role": "user", "content": str(start - 2 * step)},
            {"role": "assistant", "content": str(start - step)},
            {"role": "user", "content": str(start)},
        ],
        "start": start,
        "step": step,
    }


def held_out():
    games = all_games()
    return games[: len(games) // 5]


def training():
    games = all_games()
    return games[len(games) // 5 :]
