"""The names of `art.rewards`: RULER."""

from ludus.compat.art.judge import ruler_score_group
from ludus.rewards.chat import Price
from ludus.rewards.judge import DEFAULT_RUBRIC, JudgeOptions, TrajectoryScore, ruler

__all__ = ["DEFAULT_RUBRIC", "JudgeOptions", "Price", "TrajectoryScore", "ruler", "ruler_score_group"]
