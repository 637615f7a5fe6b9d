"""Judges: a chat model compares what several agents did, and its opinion is the reward."""

from ludus.rewards.judge.attempts import Attempt, Conversation, read_attempts
from ludus.rewards.judge.prompt import DEFAULT_RUBRIC
from ludus.rewards.judge.ruler import Judgement, JudgeOptions, judge_attempts, ruler
from ludus.rewards.judge.scores import TrajectoryScore

__all__ = [
    "Attempt",
    "Conversation",
    "DEFAULT_RUBRIC",
    "JudgeOptions",
    "Judgement",
    "TrajectoryScore",
    "judge_attempts",
    "read_attempts",
    "ruler",
]
