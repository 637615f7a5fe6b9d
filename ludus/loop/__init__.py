"""The story: groups of episodes become steps of training, and what is seen on the way."""

from ludus.loop.batch import BatchRules, BuiltBatch, build_batch
from ludus.loop.checkpoint import Checkpoint, Progress, latest_checkpoint, save_checkpoint
from ludus.loop.evaluate import EvalPlan, Evaluation, evaluate
from ludus.loop.interrupt import Interrupts
from ludus.loop.observer import Observer, RunSummary, Silent
from ludus.loop.settings import (
    CheckpointSettings,
    EvalSettings,
    TrainDatasetSettings,
    ValidDatasetSettings,
)
from ludus.loop.sft import SftSettings, train_supervised
from ludus.loop.step import Learner, StepParts, Stepped, train_step
from ludus.loop.train import Parts, Plan, train

__all__ = [
    "BatchRules",
    "BuiltBatch",
    "Checkpoint",
    "CheckpointSettings",
    "EvalPlan",
    "EvalSettings",
    "Evaluation",
    "Interrupts",
    "Learner",
    "Observer",
    "Parts",
    "Plan",
    "Progress",
    "RunSummary",
    "SftSettings",
    "Silent",
    "StepParts",
    "Stepped",
    "TrainDatasetSettings",
    "ValidDatasetSettings",
    "build_batch",
    "evaluate",
    "latest_checkpoint",
    "save_checkpoint",
    "train",
    "train_step",
    "train_supervised",
]
