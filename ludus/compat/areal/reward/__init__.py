"""The names of `areal.reward`."""

from ludus.compat.areal.math_worker import MathVerifyWorker, get_math_verify_worker
from ludus.compat.areal.verifiers import (
    clevr_count_70k_reward_fn,
    geometry3k_reward_fn,
    get_custom_reward_fn,
    gsm8k_reward_fn,
)

__all__ = [
    "MathVerifyWorker",
    "clevr_count_70k_reward_fn",
    "geometry3k_reward_fn",
    "get_custom_reward_fn",
    "get_math_verify_worker",
    "gsm8k_reward_fn",
]
