# Written from names.toml: python -m tests.compat.test_stubs
from ludus.compat.art.judge import ruler_score_group as ruler_score_group
from ludus.rewards.chat.http import Price as Price
from ludus.rewards.judge.prompt import DEFAULT_RUBRIC as DEFAULT_RUBRIC
from ludus.rewards.judge.ruler import JudgeOptions as JudgeOptions
from ludus.rewards.judge.ruler import ruler as ruler
from ludus.rewards.judge.scores import TrajectoryScore as TrajectoryScore
