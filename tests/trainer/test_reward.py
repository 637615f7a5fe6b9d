"""The gradient of a reward model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ludus.algorithms.reward_loss import TokenPair, reward_loss
from ludus.errors import UserError
from ludus.models.load import load_model
from ludus.models.scalar_head import HEAD_NAME, with_scalar_head
from ludus.models.settings import ModelSettings
from ludus.trainer.reward import RewardTrainer
from ludus.trainer.settings import TrainerSettings

PROMPT = tuple(range(5, 25))
PAIRS = [
    TokenPair((*PROMPT, 30, 31), (*PROMPT, 40), 0.5),
    TokenPair((*PROMPT, 30), (*PROMPT, 30, 31)),
    TokenPair((7, 8, 9), (*PROMPT, 50, 51, 52), 1.0),
]


def make_trainer(folder: Path, row_tokens: int) -> RewardTrainer:
    model = with_scalar_head(load_model(ModelSettings(path=str(folder), dtype="float32")))
    with torch.no_grad():
        model.head_weight.copy_(torch.linspace(-1, 1, model.head_weight.numel())[None])
    return RewardTrainer(model, TrainerSettings(row_tokens=row_tokens), center_coefficient=0.01)


def relative_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    difference = sum(float((left[name] - right[name]).square().sum()) for name in right)
    return (difference / sum(float(each.square().sum()) for each in right.values())) ** 0.5


@pytest.mark.parametrize("row_tokens", [8, 30, 512])
def test_the_gradient_is_that_of_whole_sequences(row_tokens: int, tiny_model_folder: Path) -> None:
    """For any rows, what autograd gives of the mean over pairs, each sequence by itself, to 1e-5."""
    trainer = make_trainer(tiny_model_folder, row_tokens)
    seen = trainer.add(PAIRS)
    gradients = {name: each.clone() for name, each in trainer.optimizer.gradients().items()}
    plain = make_trainer(tiny_model_folder, 64)
    rows = [plain.scores.rows([ids]) for pair in PAIRS for ids in (pair.chosen_ids, pair.rejected_ids)]
    scores = torch.cat([plain.scores(each) for each in rows]).requires_grad_()
    margins = torch.tensor([pair.margin for pair in PAIRS])
    loss, _ = reward_loss(scores[::2], scores[1::2], margins, center_coefficient=0.01)
    (slopes,) = torch.autograd.grad(loss, scores)
    name = next(name for name, each in plain.model.trainable.items() if each is plain.model.head_weight)
    for number, (row,) in enumerate(rows):
        forward, slope = plain.scores.forward, slopes[number : number + 1]
        forward.differentiate(forward.tensors(row), lambda _, slope=slope: slope, sink_1D=plain.optimizer.sink(name))
    assert relative_difference(gradients, dict(plain.optimizer.gradients())) < 1e-5
    assert seen["train/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_a_head_of_several_labels_is_named(tiny_model_folder: Path, tmp_path: Path) -> None:
    """With its file, its shape and the one that is allowed; not as torch says it."""
    model = load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32"))
    width = model.head_weight.shape[1]
    save_file({HEAD_NAME: torch.zeros(3, width)}, tmp_path / "head.safetensors")
    with pytest.raises(
        UserError, match=rf"head.safetensors' must have the shape \(1, {width}\), .* got \(3, {width}\)"
    ):
        with_scalar_head(replace(model, folder=tmp_path))
