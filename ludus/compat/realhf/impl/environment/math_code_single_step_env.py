"""The environment that judges mathematics and programs, and its judges."""

from ludus.compat.realhf.math_code import MathCodeSingleStepEnv
from ludus.rewards.answers import math_verify_call
from ludus.rewards.programs import code_verify_call, extract_code

__all__ = ["MathCodeSingleStepEnv", "code_verify_call", "extract_code", "math_verify_call"]
