"""Ready-made environments; they are registered when Ludus is imported."""

from ludus.compat.realhf.environments import NullEnvironment
from ludus.compat.realhf.math_code import MathCodeSingleStepEnv

__all__ = ["MathCodeSingleStepEnv", "NullEnvironment"]
