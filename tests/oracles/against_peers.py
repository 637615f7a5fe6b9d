"""Advantages, losses and gradients beside those of verl and TRL, on the same random tensors; `make test-oracles`.

Not collected by name: without the peers' environments there is nothing to compare with.

1. Three groups of four answers, of two to nine tokens, two rewards each; the last group's rewards are all 0.
2. Each peer computes in its own environment, with its own functions, from tensors that are handed to it in a file.
3. Nothing differs by more than 1e-6, in fp32, gradients beside their largest number; docs/algorithms.md shows by how
   much.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus.algorithms import AlgorithmSettings, LossInputs, algorithm_of
from ludus.algorithms.base import Algorithm
from ludus.algorithms.measured import Measured, TokenNumbers
from ludus.algorithms.memory import adapted, remember
from ludus.algorithms.normalisers import token_weights
from ludus.algorithms.reward_loss import reward_loss
from ludus.algorithms.value_loss import value_loss
from ludus.episodes.graph import SessionGraph
from ludus.loop.batch import BatchRules, build_batch
from ludus.rollout.pool import TakenGroups
from ludus.teachers.base import ScoredPath
from ludus.teachers.teacher import Teacher
from ludus.types import Episode, Group, Message, Outcome, Sampled, Sampling, StopReason
from tests.oracles.cases import CASES, LONGEST, OF_ITS_OWN, Case

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "algorithms.md"
ENVIRONMENTS = Path(os.environ.get("LUDUS_PEERS", ".peers"))
TOLERANCE = 1e-6
GROUPS, MEMBERS = 3, 4
GREEDY = "greedy"
"""The end of the name of an episode that others are compared with."""

Tensors = dict[str, Tensor]


def make_tensors() -> Tensors:
    random = torch.Generator().manual_seed(0)
    shape = (GROUPS * MEMBERS, LONGEST)
    lengths = torch.randint(2, LONGEST + 1, shape[:1], generator=random)
    lengths[0] = LONGEST
    proximal = -3 * torch.rand(shape, generator=random) - 0.05
    rewards = torch.rand((*shape[:1], 2), generator=random)
    rewards[-MEMBERS:] = 0.0

    def near(spread: float) -> Tensor:
        return (proximal + spread * torch.randn(shape, generator=random)).clamp(max=-0.001)

    return {
        "mask": (torch.arange(LONGEST) < lengths[:, None]).long(),
        "group": torch.arange(shape[0]) // MEMBERS,
        "rewards": rewards,
        "truncated": torch.zeros(shape[0], dtype=torch.bool),
        "entropies": 2 * torch.rand(shape, generator=random),
        "proximal": proximal,
        "logprobs": near(0.25),
        "sampled": near(0.2),
        "reference": near(0.4),
        "values": torch.rand(shape, generator=random),
        "predicted": torch.rand(shape, generator=random),
        "squares": (2 * proximal).exp() + (1 - proximal.exp()) ** 2 * torch.rand(shape, generator=random),
    }


def compute(case: Case, given: Tensors) -> Tensors:
    """What Ludus gives for it: a batch is built of the episodes, and its targets' loss taken at once."""
    if case.asked.get("trainer") == "reward":
        return compute_reward(case, given)
    if "clip_range" in case.asked:
        return compute_value(case, given)
    settings = AlgorithmSettings.model_validate(case.keys)
    algorithm, groups = algorithm_of(adapted(settings, {}) or settings), make_groups(given)
    rules = BatchRules(settings, turn_discount=1.0, export_style="concat", row_tokens=64, max_token_age=None)
    built = build_batch(TakenGroups(tuple(groups), ()), rules, version=0, measured=measure(groups, given, algorithm))
    rows = built.batch.rows
    # tokens are named by their places in the tensors
    targets = torch.tensor([target for row in rows for target in row.target_ids])
    logprobs, entropies = (given[name].clone().requires_grad_() for name in ("logprobs", "entropies"))

    def at_targets(tensor: Tensor) -> Tensor:
        return tensor.flatten()[targets]

    loss, metrics = algorithm.loss(
        LossInputs(
            logprobs_N=at_targets(logprobs),
            sampled_logprobs_N=at_targets(given[case.sampler]),
            proximal_logprobs_N=at_targets(given["proximal"]) if algorithm.needs.proximal else None,
            reference_logprobs_N=at_targets(given["reference"]) if algorithm.needs.reference else None,
            advantages_N=torch.tensor([value for row in rows for value in row.advantages]),
            weights_N=torch.tensor([value for row in rows for value in row.weights]),
            entropies_N=at_targets(entropies),
            turns_N=targets // LONGEST,
            episodes_N=targets // LONGEST,
            groups_N=targets // (LONGEST * MEMBERS),
        )
    )
    loss.backward()
    assert logprobs.grad is not None
    shown = {"entropy": at_targets(given["entropies"]).mean(), **metrics}
    known = remember(settings, {}, {f"train/{name}": float(each) for name, each in shown.items()})
    advantages, returns = torch.zeros(2, *given["mask"].shape)
    advantages.view(-1)[targets] = torch.tensor([value for row in rows for value in row.advantages])
    if "values" in algorithm.needs.measured:
        returns.view(-1)[targets] = torch.tensor([value for row in rows for value in row.value_targets or ()])
    return {
        "advantages": advantages,
        "returns": returns,
        "loss": loss.detach(),
        "gradient": logprobs.grad,
        "entropy_gradient": torch.zeros_like(entropies) if entropies.grad is None else entropies.grad,
        "entropy_coef": torch.tensor(known.get("entropy/coef", 0.0)),
        "kl_coef": torch.tensor(built.memory.get("reward_kl/coef", 0.0)),
    }


def compute_reward(case: Case, given: Tensors) -> Tensors:
    """Of a reward model whose numbers are the first logprob of each answer; the even ones are preferred."""
    scores = given["logprobs"][:, 0].clone().requires_grad_()
    coefficient = case.asked["config"]["center_rewards_coefficient"]
    loss, _ = reward_loss(scores[::2], scores[1::2], given["rewards"][::2, 0], center_coefficient=coefficient)
    loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    return {"loss": loss.detach(), "gradient": scores.grad}


def compute_value(case: Case, given: Tensors) -> Tensors:
    """Of a critic that expected `values` before the batch and expects `predicted` now; the targets are `rewards`."""
    is_trained = given["mask"].bool()
    predicted = given["predicted"].clone().requires_grad_()
    targets = given["rewards"][:, :1].expand_as(predicted)
    weights = torch.tensor(token_weights(given["mask"].sum(1).tolist()))[:, None].expand_as(predicted)
    columns = (each[is_trained] for each in (predicted, given["values"], targets, weights))
    loss, _ = value_loss(*columns, clip_range=case.asked["clip_range"])
    loss.backward()  # type: ignore[no-untyped-call]
    assert predicted.grad is not None
    return {"loss": loss.detach(), "gradient": predicted.grad}


@dataclass(frozen=True)
class Scores:
    """Logprobs of tokens that are named by their places."""

    logprobs: Tensor

    async def score(self, paths: Sequence[ScoredPath]) -> list[tuple[float, ...]]:
        flat = self.logprobs.flatten()
        return [tuple(flat[[each.token_ids[at] for at in each.wanted]].tolist()) for each in paths]

    async def close(self) -> None: ...


def measure(groups: list[Group], given: Tensors, algorithm: Algorithm) -> Measured:
    """What it asks for: the weights that the batch began with count as those that sampled, as they do at verl. The
    reference teaches the weights of now what older ones had sampled."""
    turns = [turn for group in groups for episode in group.episodes for turn in episode.session.turns]
    if algorithm.needs.teacher:
        teacher = Teacher(Scores(given["reference"]), Scores(given["logprobs"]))
        chosen = {turn.id: range(len(turn.sampled.token_ids)) for turn in turns}
        episodes = [episode for group in groups for episode in group.episodes]
        gaps = asyncio.run(teacher.gaps(episodes, chosen, version=1))
        return {turn_id: TokenNumbers(teacher_gaps=each) for turn_id, each in gaps.items()}
    asked = algorithm.needs.measured
    every = {
        "values": given["values"],
        "sampled_logprobs": given["proximal"],
        "reference_logprobs": given["reference"],
        "logit_gradients": 1 - 2 * given["proximal"].exp() + given["squares"],
    }
    return {
        turn.id: TokenNumbers(
            **{name: tuple(every[name].flatten()[list(turn.sampled.token_ids)].tolist()) for name in asked}
        )
        for turn in turns
        if asked
    }


def make_groups(given: Tensors) -> list[Group]:
    places = torch.arange(given["mask"].numel()).view_as(given["mask"])
    members = defaultdict(list)
    for number, (group, rewards) in enumerate(zip(given["group"].tolist(), given["rewards"].tolist(), strict=True)):
        tokens = places[number, : int(given["mask"][number].sum())].tolist()
        stop: StopReason = "length" if given["truncated"][number] else "stop"
        members[group].append(make_episode(f"{group}-{number:02}", tokens, rewards, stop))
    for group, reward in enumerate(given.get("baselines", [])):
        likeliest = make_episode(f"{group}-{GREEDY}", [0], [float(reward)], "stop", temperature=0.0)
        members[group].append(likeliest)
    return [Group(str(group), str(group), tuple(episodes)) for group, episodes in members.items()]


def make_episode(
    episode_id: str, tokens: list[int], rewards: list[float], stop: StopReason, temperature: float = 1.0
) -> Episode:
    """One turn; the reward is the sum, its parts are metrics."""
    graph = SessionGraph(episode_id)
    graph.add_turn(
        turn_id=f"{episode_id}/t",
        prompt_ids=(1,),
        prefix=None,
        follows=None,
        fork=None,
        messages=(Message("user", "go"),),
        reply=Message("assistant", "x"),
        sampled=Sampled(tuple(tokens), (-1.0,) * len(tokens), (0,) * len(tokens), stop),
        sampling=Sampling(temperature=temperature),
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


def ask(peer: str, folder: Path) -> dict[str, Tensors]:
    """By name of a case what the peer gives for it."""
    python = ENVIRONMENTS.absolute() / peer.lower() / "bin" / "python"
    assert python.exists(), f"{python} is missing; run `make test-oracles`"
    work, answers = folder / "work.pt", folder / "answers.pt"
    cases = {case.name: case.asked for case in CASES + OF_ITS_OWN if case.peer == peer}
    torch.save({"tensors": make_tensors(), "cases": cases}, work)
    command = [python, HERE / f"run_{peer.lower()}.py", work, answers]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    loaded: dict[str, Tensors] = torch.load(answers)
    return loaded


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensors]]:
    return {peer: ask(peer, tmp_path_factory.mktemp(peer)) for peer in ("verl", "TRL")}


def differences(case: Case, answers: dict[str, dict[str, Tensors]]) -> dict[str, float]:
    """The largest of each; of tensors smaller than 1, as gradients are, beside their largest number."""
    theirs = answers[case.peer][case.name]
    ours = compute(case, {**make_tensors(), **case.asked.get("given", {})})
    found = {}
    for name in case.compared:
        value = theirs[name]
        size = min(float(value.abs().max()), 1.0) if value.dim() and value.any() else 1.0
        found[name] = float((ours[name] - value).abs().max()) / size
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.peer}-{case.name}")
def test_same_numbers(answers: Any, case: Case) -> None:
    """Advantages, the loss and its gradient are the peer's."""
    found = differences(case, answers)
    assert max(found.values()) <= TOLERANCE, found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", OF_ITS_OWN, ids=lambda case: f"{case.peer}-{case.name}")
def test_the_peer_parts_from_its_paper(answers: Any, case: Case) -> None:
    """What docs/algorithms.md says of the peer is so: there it is not the paper's number, which is ours."""
    assert max(differences(case, answers).values()) > 0.01


@pytest.mark.timeout(600)
def test_the_page_has_the_table(answers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/algorithms.md names every comparison of this run, and none that it did not make."""
    largest = {(case.name, case.peer): max(differences(case, answers).values()) for case in CASES}
    rows = [f"| {name} | {peer} | {value:.0e} |" for (name, peer), value in sorted(largest.items())]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", "| algorithm | peer | largest difference |", "|---|---|---|", *rows, ""]))
    assert len(rows) == len(CASES), "two cases have one name"
    shown = re.findall(r"^\| (.+) \| (verl|TRL) \| (\S+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {(name, peer) for name, peer, _ in shown} == set(largest)
    assert all(float(value) <= TOLERANCE for *_, value in shown)
