"""Rows in verl's form: terms with an operator @ that nobody knows but the tool, and their values.

A fifth is held out by a fixed seed: the same kinds of term with numbers that were never trained on together.
"""

import random

RULES = "Only the tool knows the operator @. Call it for each @, from the left, then reply with the number only."
QUESTIONS = ("Compute {term}.", "What is {term}?", "Give the value of {term}.")
NUM_PROBLEMS = 600


def all_rows():
    rng = random.Random(7)
    terms = {}
    while len(terms) < NUM_PROBLEMS:
        numbers = [rng.randint(2, 60) for _ in range(2 if len(terms) % 3 == 0 else 3)]
        terms[" @ ".join(map(str, numbers))] = steps_of(numbers)  # one that was there before is drawn again
    rows = [row(number, rng.choice(QUESTIONS).format(term=term), terms[term]) for number, term in enumerate(terms)]
    rng.shuffle(rows)
    return rows


def operate(a, b):
    return 3 * a - 2 * b


def steps_of(numbers):
    """The operations that a term asks for, from left to right."""
    value, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append((value, number))
        value = operate(value, number)
    return steps


def row(number, question, steps):
    return {
        "data_source": "operator",
        "prompt": [{"role": "system", "content": RULES}, {"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": str(operate(*steps[-1]))},
        "extra_info": {"index": number, "steps": steps},
    }


def held_out():
    rows = all_rows()
    return rows[: len(rows) // 5]


def training():
    rows = all_rows()
    return rows[len(rows) // 5 :]
