"""Shared by the ready-made agents: a calculator's functions, and the reward of a mathematical answer.

Knows: numbers, answers.  Knows not: SDKs, models.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

from ludus.compat.areal.math_worker import get_math_verify_worker
from ludus.errors import UserError


def math_reward_fn(completions: str | None, answer: str) -> float:
    """1.0 if the answer holds the solution's value, as math-verify reads it, else 0.0."""
    return get_math_verify_worker().verify(completions or "", answer)


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def subtract(a: float, b: float) -> float:
    """Subtract the second number from the first."""
    return a - b


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def divide(a: float, b: float) -> float:
    """Divide the first number by the second, which is not zero."""
    if b == 0:
        raise ValueError("a number cannot be divided by zero")
    return a / b


def power(a: float, b: float) -> float:
    """Raise the first number to the power of the second."""
    return float(a**b)


def sqrt(a: float) -> float:
    """The square root of a number that is not negative."""
    if a < 0:
        raise ValueError(f"{a} has no real square root")
    return math.sqrt(a)


FUNCTIONS = (add, subtract, multiply, divide, power, sqrt)
INSTRUCTIONS = (
    "You answer questions about numbers. Compute nothing in your head: call the calculator's tools for every step, "
    "then say the final answer."
)


def sdk(module: str, package: str) -> Any:
    """Import the SDK of an agent. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"this agent needs {error.name}, which is not installed: pip install {package}") from None
