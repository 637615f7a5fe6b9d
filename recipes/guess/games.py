"""Every game of the guessing recipe: a clue and a hidden number that agrees with it.

A fifth of the pairs (clue, number) is held out by a fixed seed and never trained on. Whole numbers are not held out:
an optimal player would learn never to spend a guess on a number that is never the answer.
"""

import random

NUMBERS = range(1, 21)
HIGHER_THAN = range(1, 8)
LOWER_THAN = range(14, 21)


def all_games():
    games = [game("Guess.", 1, 20, number) for number in NUMBERS]
    for bound in HIGHER_THAN:
        clue = f"Guess. It is higher than {bound}."
        games += [game(clue, bound + 1, 20, number) for number in NUMBERS if number > bound]
    for bound in LOWER_THAN:
        clue = f"Guess. It is lower than {bound}."
        games += [game(clue, 1, bound - 1, number) for number in NUMBERS if number < bound]
    random.Random(5).shuffle(games)
    return games


def game(clue, low, high, number):
    return {"clue": clue, "low": low, "high": high, "number": number}


def held_out():
    games = all_games()
    return games[: len(games) // 5]


def training():
    games = all_games()
    return games[len(games) // 5 :]
