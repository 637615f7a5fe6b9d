"""The rows: six letters with spaces between, so that each is a token of its own. A tenth is held out."""

import random
import string

NUM_LETTERS = 6
NUM_ROWS = 2000


def all_rows():
    rng = random.Random(11)
    words = dict.fromkeys("".join(rng.sample(string.ascii_lowercase, NUM_LETTERS)) for _ in range(NUM_ROWS))
    return [row(word) for word in words]


def row(word):
    return {"question": f"Write these letters backwards: {' '.join(word)}", "answer": " ".join(word[::-1])}


def held_out():
    return all_rows()[: NUM_ROWS // 10]


def training():
    return all_rows()[NUM_ROWS // 10 :]
