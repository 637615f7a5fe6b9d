"""The game, which lives where the client is: a number from 1 to 9 is hidden, three guesses find it.

A fifth of the games is held out by a fixed seed: clues and numbers are all seen in training, these pairs are not.
"""

import random
import re

RULES = (
    "You play a guessing game. I think of a number from 1 to 9. Reply with one number only. I answer higher or lower."
)
GUESSES = 3
LOWEST, HIGHEST = 1, 9


def all_games():
    clues = [("Guess.", LOWEST, HIGHEST)]
    clues += [(f"Guess. It is higher than {bound}.", bound + 1, HIGHEST) for bound in range(1, 6)]
    clues += [(f"Guess. It is lower than {bound}.", LOWEST, bound - 1) for bound in range(5, 10)]
    games = [
        {"clue": clue, "low": low, "high": high, "number": number}
        for clue, low, high in clues
        for number in range(low, high + 1)
    ]
    random.Random(3).shuffle(games)
    return games


def held_out():
    games = all_games()
    return games[: len(games) // 5]


def training():
    games = all_games()
    return games[len(games) // 5 :]


def demonstrations(count):
    """Conversations of a player who names numbers and listens to no answer: the form is right, the game is not."""
    draw, found = random.Random(4), []
    for game in draw.choices(training(), k=count):
        play, messages = Play(game), [{"role": "system", "content": RULES}, {"role": "user", "content": game["clue"]}]
        for _ in range(GUESSES):
            guess = str(draw.randint(LOWEST, HIGHEST))
            messages.append({"role": "assistant", "content": guess})
            answer = play.answer(guess)
            if play.found:
                break
            messages.append({"role": "user", "content": answer})
        found.append(messages)
    return found


class Play:
    """One game: what the player has heard so far, and what his guesses are worth."""

    def __init__(self, game):
        self.low, self.high, self.number = game["low"], game["high"], game["number"]
        self.opening = game["clue"]
        self.scores = []
        self.found = False

    def answer(self, text):
        """What the player hears."""
        guess = read_number(text)
        self.scores.append(score(guess, self.low, self.high))
        if guess is None:
            return "Reply with one number."
        self.found = guess == self.number
        if guess < self.number:
            self.low = max(self.low, guess + 1)
            return "higher"
        self.high = min(self.high, guess - 1)
        return "lower"

    @property
    def reward(self):
        """Half for finding the number, half for how good the guesses were."""
        return 0.5 * self.found + 0.5 * sum(self.scores) / len(self.scores)


def read_number(text):
    """The number that was named, or None if anything else was said."""
    match = re.fullmatch(r"\s*(\d+)\.?\s*", text or "")
    return int(match.group(1)) if match else None


def score(guess, low, high):
    """Of one guess: 0.2 if it is a number, 0.5 if it agrees with everything heard, up to 1 the nearer to the middle."""
    if guess is None:
        return 0.0
    if not low <= guess <= high:
        return 0.2
    span = high - low
    return 0.5 + 0.5 * (1.0 if span == 0 else 1.0 - abs(2 * guess - low - high) / span)
