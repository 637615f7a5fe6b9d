"""Rows in verl's form: orders in a canteen, put in words, with the loop that plays them and the answer.

A fifth is held out by a fixed seed: the same kinds of order with numbers that were never trained on together.
"""

import random

RULES = "Work out the bill. Use the tool to calculate, then reply with the number only."
KINDS = (
    ("{a} soups at {b} coins and one cake at {c} coins.", "{a} * {b} + {c}"),
    ("{a} soups at {b} coins, with {c} coins off the bill.", "{a} * {b} - {c}"),
    ("{a} guests and {b} children, {c} coins each.", "({a} + {b}) * {c}"),
    ("{a} tables of {b} guests, {c} coins a guest.", "{a} * {b} * {c}"),
    ("{a} coins for drinks, {b} for bread, twice {c} for the band.", "{a} + {b} + 2 * {c}"),
)
NUM_PROBLEMS = 600


def all_rows():
    rng = random.Random(5)
    rows = []
    for number in range(NUM_PROBLEMS):
        words, form = KINDS[number % len(KINDS)]
        numbers = {name: rng.randint(12, 99) for name in "abc"}
        rows.append(row(number, words.format(**numbers), form.format(**numbers)))
    rng.shuffle(rows)
    return rows


def row(number, question, expression):
    answer = str(eval(expression, {"__builtins__": {}}))  # our own expression, never the model's
    return {
        "data_source": "canteen",
        "agent_name": "tool_agent",
        "prompt": [{"role": "system", "content": RULES}, {"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"index": number, "expression": expression},
    }


def held_out():
    rows = all_rows()
    return rows[: len(rows) // 5]


def training():
    rows = all_rows()
    return rows[len(rows) // 5 :]
