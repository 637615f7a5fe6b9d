"""verl's side of the comparison, run by the Python of verl's environment: run_verl.py WORK ANSWERS

WORK: tensors, and cases by name. ANSWERS: by name what verl's own functions give: advantages, the loss, and its
gradient with respect to logprobs and entropies. A case is one optimizer step: estimator, rollout correction, policy
loss, entropy, KL, in the order in which verl's trainer composes them (verl/workers/utils/losses.py).
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import asdict
from typing import Any

import torch
from omegaconf import OmegaConf
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import (
    agg_loss,
    compute_value_loss,
    get_adv_estimator_fn,
    get_kl_controller,
    get_policy_loss_fn,
    kl_penalty,
)
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.utils.torch_functional import masked_mean
from verl.workers.config import ActorConfig, PolicyLossConfig

Tensors = dict[str, torch.Tensor]


def value(case: dict[str, Any], given: Tensors) -> Tensors:
    """The critic's loss as verl/workers/utils/losses.py takes it, a mean over tokens."""
    predicted = given["predicted"].clone().requires_grad_()
    targets = given["rewards"][:, :1].expand_as(predicted)
    loss, _ = compute_value_loss(predicted, targets, given["values"], given["mask"], case["clip_range"])
    loss.backward()
    return {"loss": loss.detach(), "gradient": predicted.grad}


def answer(case: dict[str, Any], given: Tensors) -> Tensors:
    if "clip_range" in case:
        return value(case, given)
    if case.get("minibatches", 1) > 1:
        return minibatches(case, given)
    given = {**given, **case.get("given", {})}
    mask = given["mask"]
    logprobs, entropies = (given[name].clone().requires_grad_() for name in ("logprobs", "entropies"))
    correction, weights, kept = case.get("correction", {}), None, mask
    if "preset" in case:
        name, bounds = case["preset"]
        made = asdict(getattr(RolloutCorrectionConfig, name)(**bounds))
        assert made == asdict(RolloutCorrectionConfig(**correction)), f"verl's {name} is {made}"
    if correction and not correction.get("bypass_mode"):
        # the trainer's mask from here on: of advantages, of denominators, of all terms (ray_trainer.py)
        keys = {name: value for name, value in correction.items() if name.startswith("rollout_")}
        weights, kept, _ = compute_rollout_correction_and_rejection_mask(
            given["proximal"], given["sampled"], mask, **keys
        )
        weights = weights.batch["rollout_is_weights"] if weights is not None else None
    advantages, returns, kl_coef = estimate(case, given, kept)
    if kept is not mask and correction.get("rollout_rs"):
        assert kept.sum() < mask.sum() and (advantages * kept).any(), (
            "nothing is rejected, or nothing that is trained kept"
        )
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=given["group"].bincount().max().item(),
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(
            **case.get("policy_loss", {}), rollout_correction=RolloutCorrectionConfig(**correction)
        ),
        **case.get("actor", {}),
    )
    # what the trainer takes from the whole batch: the tokens of its mask, but all sequences
    sizes = {"batch_num_tokens": kept.sum(), "global_batch_size": len(mask), "dp_size": 1}
    config.global_batch_info.update(sizes, loss_scale_factor=case.get("loss_scale_factor"))
    aggregation = case.get("aggregation", "token-mean")
    is_bypassed = correction.get("bypass_mode", False)  # as `apply_bypass_mode` of rollout_corr_helper.py
    policy_loss = get_policy_loss_fn("bypass_mode" if is_bypassed else case.get("loss", "vanilla"))
    old = given["sampled" if is_bypassed else case.get("old", "proximal")]
    loss, _ = policy_loss(old, logprobs, advantages, kept, aggregation, config, weights)
    if "entropy" in case:
        loss = loss - case["entropy"] * agg_loss(entropies, kept, aggregation, **config.global_batch_info)
    if "kl" in case:
        kl = kl_penalty(logprobs, given["reference"], case["kl"]["type"])
        loss = loss + case["kl"]["beta"] * agg_loss(kl, kept, aggregation, **config.global_batch_info)
    if "distillation" in case:
        loss = distilled(case["distillation"], loss, logprobs, given, aggregation, config)
    loss.backward()
    slopes = torch.zeros_like(entropies) if entropies.grad is None else entropies.grad
    found = {"advantages": advantages * mask, "returns": returns * mask, "kl_coef": torch.tensor(kl_coef)}
    return {**found, "loss": loss.detach(), "gradient": logprobs.grad, "entropy_gradient": slopes}


def minibatches(case: dict[str, Any], given: Tensors) -> Tensors:
    """An answer for each, which has whole groups; verl's engine is given them one by one (engine_workers.py)."""
    parts = torch.arange(len(given["mask"])).chunk(case["minibatches"])
    found = [answer({**case, "minibatches": 1}, {name: each[at] for name, each in given.items()}) for at in parts]
    columns = {name: [each[name] for each in found] for name in found[0]}
    return {name: torch.cat(each) if each[0].dim() else sum(each) for name, each in columns.items()}


def distilled(
    how: dict[str, Any],
    task: torch.Tensor,
    logprobs: torch.Tensor,
    given: Tensors,
    aggregation: str,
    config: ActorConfig,
) -> torch.Tensor:
    """The loss as verl/trainer/distillation/losses.py puts a teacher's beside the task's; the reference teaches."""
    losses, mask = kl_penalty(logprobs, given["reference"], how["loss_mode"]), given["mask"]
    if how.get("use_policy_gradient"):
        policy_loss = get_policy_loss_fn("vanilla")
        loss, _ = policy_loss(given["proximal"], logprobs, -losses.detach(), mask, aggregation, config, None)
    else:
        loss = agg_loss(losses, mask, aggregation, **config.global_batch_info)
    return task + how["coef"] * loss if "coef" in how else loss


def estimate(case: dict[str, Any], given: Tensors, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Advantages and returns of tokens, and the coefficient that the next batch's KL has in the reward.

    kept: the mask of the tokens that are not rejected, of those that have a reward.
    """
    mask, rewards = given["mask"], given["rewards"]
    lengths = mask.sum(1)
    at_the_end = torch.zeros_like(given["logprobs"])
    at_the_end[torch.arange(len(mask)), lengths - 1] = rewards.sum(1)
    kl_coef = 0.0
    if "reward_kl" in case:
        at_the_end, kl_coef = penalized(case["reward_kl"], at_the_end, given)
    names = [f"reward{number}" for number in range(rewards.shape[1])]
    keys = {
        "token_level_rewards": at_the_end,
        "response_mask": kept,
        "index": given["group"].numpy(),
        "config": OmegaConf.create({"gamma": 1.0, "gdpo_reward_keys": names, **case.get("algorithm", {})}),
        "non_tensor_batch": dict(zip(names, rewards.T.numpy(), strict=True)),
        "batch": {"prompts": mask[:, :0], "attention_mask": mask},
        "values": given["values"],
        "old_log_probs": given["proximal"],
        "sum_pi_squared": given["squares"],
        **case.get("estimator_keys", {}),
    }
    name = case.get("estimator", "grpo")
    if name == "remax":
        keys["reward_baselines"] = given["baselines"][given["group"]]
    function = get_adv_estimator_fn(name)
    accepted = inspect.signature(function).parameters
    if "kwargs" not in accepted:
        keys = {key: value for key, value in keys.items() if key in accepted}
    return *function(**keys), kl_coef


def penalized(how: dict[str, Any], rewards: torch.Tensor, given: Tensors) -> tuple[torch.Tensor, float]:
    """The rewards of tokens less the KL as `apply_kl_penalty` of verl/trainer/ppo/ray_trainer.py takes it off, and the
    coefficient that the controller has next."""
    controller, mask = get_kl_controller(OmegaConf.create(how["kl_ctrl"])), given["mask"]
    kl = kl_penalty(given["proximal"], given["reference"], kl_penalty=how["kl_penalty"]) * mask
    rewards = rewards - controller.value * kl
    controller.update(current_kl=masked_mean(kl, mask=mask, axis=-1).mean().item(), n_steps=len(mask))
    return rewards, float(controller.value)


if __name__ == "__main__":
    work = torch.load(sys.argv[1])
    presets = {name for name, member in vars(RolloutCorrectionConfig).items() if isinstance(member, classmethod)}
    assert presets == {case["preset"][0] for case in work["cases"].values() if "preset" in case}, sorted(presets)
    torch.save({name: answer(case, work["tensors"]) for name, case in work["cases"].items()}, sys.argv[2])
