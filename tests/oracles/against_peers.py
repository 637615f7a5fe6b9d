"""Advantages, losses and gradients beside those of verl and TRL, on the same random tensors; `make test-oracles`.

Not collected by name: without the peers' environments there is nothing to compare with.

1. Three groups of four answers, of two to nine tokens, two rewards each; the last group's rewards all agree.
2. Each peer computes in its own environment, with its own functions, from tensors that are handed to it in a file.
3. Nothing differs by more than 1e-6, in fp32, gradients beside their largest number; docs/algorithms.md shows by how
   much.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus.algorithms import AlgorithmSettings, GroupReturns, LossInputs, algorithm_of
from ludus.episodes.graph import SessionGraph
from ludus.types import Episode, Group, Message, Outcome, Sampled, Sampling
from tests.oracles.cases import CASES, LONGEST, Case

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "algorithms.md"
ENVIRONMENTS = Path(os.environ.get("LUDUS_PEERS", ".peers"))
TOLERANCE = 1e-6
GROUPS, MEMBERS = 3, 4

Tensors = dict[str, Tensor]


def make_tensors() -> Tensors:
    random = torch.Generator().manual_seed(0)
    shape = (GROUPS * MEMBERS, LONGEST)
    lengths = torch.randint(2, LONGEST + 1, shape[:1], generator=random)
    lengths[0] = LONGEST
    proximal = -3 * torch.rand(shape, generator=random) - 0.05
    rewards = torch.rand((*shape[:1], 2), generator=random)
    rewards[-MEMBERS:] = torch.tensor([0.5, 0.25])

    def near(spread: float) -> Tensor:
        return (proximal + spread * torch.randn(shape, generator=random)).clamp(max=-0.001)

    return {
        "mask": (torch.arange(LONGEST) < lengths[:, None]).long(),
        "group": torch.arange(shape[0]) // MEMBERS,
        "rewards": rewards,
        "greedy_rewards": torch.rand(shape[:1], generator=random),
        "values": torch.randn(shape, generator=random),
        "entropies": 2 * torch.rand(shape, generator=random),
        "proximal": proximal,
        "logprobs": near(0.25),
        "sampled": near(0.2),
        "reference": near(0.4),
    }


def compute(case: Case, given: Tensors) -> Tensors:
    """What Ludus gives for it."""
    mask = given["mask"].bool()
    algorithm = algorithm_of(AlgorithmSettings.model_validate(case.keys))
    advantages = torch.tensor(
        [
            value
            for group in algorithm.advantages(make_groups(given))
            for turns in group.values()
            for value in turns.values()
        ]
    )
    lengths = given["mask"].sum(1).tolist()
    weights = torch.tensor(algorithm.weights(lengths))
    logprobs = given["logprobs"].clone().requires_grad_()
    loss, _ = algorithm.loss(
        LossInputs(
            logprobs_N=logprobs[mask],
            sampled_logprobs_N=given["sampled"][mask],
            proximal_logprobs_N=given["proximal"][mask] if algorithm.needs.proximal else None,
            reference_logprobs_N=given["reference"][mask] if algorithm.needs.reference else None,
            advantages_N=advantages[:, None].expand_as(mask)[mask],
            weights_N=weights[:, None].expand_as(mask)[mask],
        )
    )
    loss.backward()
    assert logprobs.grad is not None
    return {"advantages": advantages[:, None] * mask, "loss": loss.detach(), "gradient": logprobs.grad}


def make_groups(given: Tensors) -> list[GroupReturns]:
    members = defaultdict(list)
    for number, (group, rewards) in enumerate(zip(given["group"].tolist(), given["rewards"].tolist(), strict=True)):
        members[group].append(make_episode(f"{group}-{number:02}", int(given["mask"][number].sum()), rewards))
    return [
        GroupReturns(
            Group(str(group), str(group), tuple(episodes)),
            {each.id: {each.session.turns[0].id: each.reward} for each in episodes},
        )
        for group, episodes in members.items()
    ]


def make_episode(episode_id: str, num_tokens: int, rewards: list[float]) -> Episode:
    """One turn; the reward is the sum, its parts are metrics."""
    graph = SessionGraph(episode_id)
    tokens = (7,) * num_tokens
    graph.add_turn(
        turn_id=f"{episode_id}/t",
        prompt_ids=(1,),
        prefix=None,
        follows=None,
        fork=None,
        messages=(Message("user", "go"),),
        reply=Message("assistant", "x"),
        sampled=Sampled(tokens, (-1.0,) * num_tokens, (0,) * num_tokens, "stop"),
        sampling=Sampling(),
        agent="",
        tools=(),
        started_at=0.0,
        finished_at=1.0,
    )
    return Episode(
        id=episode_id,
        task_id=episode_id,
        group_id=episode_id.split("-")[0],
        session=graph.snapshot(),
        rewards={f"{episode_id}/t": sum(rewards)},
        outcome=Outcome("ok"),
        reward=sum(rewards),
        metrics={f"reward{number}": value for number, value in enumerate(rewards)},
    )


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, float]]:
    """By name and peer: of advantages, loss and gradient the largest difference."""
    given, found = make_tensors(), {}
    for peer in ("verl", "TRL"):
        cases = [case for case in CASES if case.peer == peer]
        answers = ask(peer, given, cases, tmp_path_factory.mktemp(peer))
        for case in cases:
            ours = compute(case, given)
            found[case.name, peer] = {name: difference(ours[name], value) for name, value in answers[case.name].items()}
    assert len(found) == len(CASES), "two cases have one name"
    return found


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest; that of tensors smaller than 1, as gradients are, beside their largest number."""
    size = float(theirs.abs().max()) if theirs.dim() else 1.0
    return float((ours - theirs).abs().max()) / min(size, 1.0)


def ask(peer: str, given: Tensors, cases: list[Case], folder: Path) -> dict[str, Tensors]:
    python = ENVIRONMENTS.absolute() / peer.lower() / "bin" / "python"
    assert python.exists(), f"{python} is missing; run `make test-oracles`"
    work, answers = folder / "work.pt", folder / "answers.pt"
    torch.save({"tensors": given, "cases": {case.name: case.asked for case in cases}}, work)
    command = [python, HERE / f"run_{peer.lower()}.py", work, answers]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    loaded: dict[str, Tensors] = torch.load(answers)
    return loaded


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.peer}-{case.name}")
def test_same_numbers(differences: Any, case: Case) -> None:
    """Advantages, the loss and its gradient are the peer's."""
    assert max(differences[case.name, case.peer].values()) <= TOLERANCE, differences[case.name, case.peer]


@pytest.mark.timeout(600)
def test_the_page_has_the_table(differences: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/algorithms.md names every comparison of this run, and none that it did not make."""
    rows = [f"| {name} | {peer} | {max(by.values()):.0e} |" for (name, peer), by in sorted(differences.items())]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", "| algorithm | peer | largest difference |", "|---|---|---|", *rows, ""]))
    shown = re.findall(r"^\| (.+) \| (verl|TRL) \| (\S+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {(name, peer) for name, peer, _ in shown} == set(differences)
    assert all(float(largest) <= TOLERANCE for *_, largest in shown)
