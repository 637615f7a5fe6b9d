"""The problems: sums of two numbers from 1 to 50. A tenth of the pairs is held out by a fixed seed."""

import random

NUMBERS = range(1, 51)


def problem(a, b):
    return {"question": f"What is {a}+{b}? Answer with just the number.", "answer": a + b}


def all_problems():
    problems = [problem(a, b) for a in NUMBERS for b in NUMBERS]
    random.Random(7).shuffle(problems)
    return problems


def held_out():
    problems = all_problems()
    return problems[: len(problems) // 10]


def training():
    problems = all_problems()
    return problems[len(problems) // 10 :]
