"""TRL's side of the comparison, run by the Python of TRL's environment: run_trl.py WORK ANSWERS

WORK: tensors, and cases by name. ANSWERS: by name what TRL's own trainers give: advantages, the loss, and its gradient
with respect to logprobs and entropies. A case is one optimizer step of a trainer as TRL builds it, around a model of a
few weights; what the model, the engine and the reward functions would give is taken from the tensors.
"""

from __future__ import annotations

import sys
import tempfile
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
)
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer
from trl.trainer.utils import split_tensor_dict

Tensors = dict[str, torch.Tensor]
TRAINERS = {
    "grpo": (GRPOTrainer, GRPOConfig),
    "rloo": (RLOOTrainer, RLOOConfig),
    "gmpo": (GMPOTrainer, GMPOConfig),
    "dpo": (DPOTrainer, DPOConfig),
    "kto": (KTOTrainer, KTOConfig),
    "orpo": (ORPOTrainer, ORPOConfig),
}
PAIR = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}
PREFERENCES = {
    "dpo": PAIR,
    "orpo": PAIR,
    "kto": {"prompt": ["a"] * 2, "completion": ["b", "c"], "label": [True, False]},
}
"""What they are built with; it is never read."""


def prefer(case: dict[str, Any], given: Tensors, folder: str) -> Tensors:
    """The loss of the best of each group against its worst, chosen first; of a group of equal rewards there is none."""
    rewards = given["rewards"].sum(1).view(int(given["group"].max()) + 1, -1)
    first = torch.arange(len(rewards)) * rewards.shape[1]
    pairs = torch.stack([first + rewards.argmax(1), first + rewards.argmin(1)])[:, rewards.std(1) > 0].flatten()
    logprobs, mask = given["logprobs"].clone().requires_grad_(), given["mask"][pairs]
    own, reference = (each[pairs] * mask for each in (logprobs, given["reference"]))
    config = TRAINERS[case["trainer"]][1](output_dir=folder, use_cpu=True, bf16=False, report_to=[], **case["config"])
    loaded = {"processing_class": PreTrainedTokenizerFast.from_pretrained(folder)}
    dataset = Dataset.from_dict(PREFERENCES[case["trainer"]])
    model = LlamaForCausalLM.from_pretrained(folder)
    trainer = TRAINERS[case["trainer"]][0](model, args=config, train_dataset=dataset, **loaded)

    def model_of(logprobs: torch.Tensor) -> Any:
        shown = {"entropy": logprobs.detach(), "mean_logits": logprobs.detach(), "is_top1": logprobs > 0}
        return lambda **_: SimpleNamespace(log_probs=logprobs, **shown)

    # one token of prompt before each answer
    tokens = torch.nn.functional.pad(mask, (1, 0))
    inputs = {"input_ids": tokens, "attention_mask": tokens, "completion_mask": tokens}
    if case["trainer"] == "orpo":
        lengths = mask.sum(1)
        chosen, rejected = (own.sum(1) / lengths).chunk(2)
        # TRL's cross-entropy counts the tokens of the prompt too; this is the paper's
        trainer.concatenated_forward = lambda *_: (chosen, rejected, own, own, -chosen.mean())
        loss, _ = trainer.get_batch_loss_metrics(model, {}, "train")
    else:
        trainer.ref_model = model_of(reference)
        if case["trainer"] == "kto":
            inputs["label"] = torch.arange(len(pairs)) < len(pairs) // 2
            # the policy's own answers, those that are neither best nor worst of their group too
            whole = [(each.detach() * given["mask"]).sum(1) for each in (logprobs, given["reference"])]
            sums = dict(zip((True, False), whole, strict=True))
            trainer._compute_kl_logps = lambda used, _: sums[used is not trainer.ref_model]
        loss = trainer._compute_loss(model_of(own), inputs, False)
    loss.backward()
    return {"loss": loss.detach(), "gradient": logprobs.grad}


def judge(case: dict[str, Any], given: Tensors, folder: str) -> Tensors:
    """The loss of a reward model whose numbers are the first logprob of each answer; the even ones are preferred."""
    scores = given["logprobs"][:, 0].clone().requires_grad_()
    config = RewardConfig(output_dir=folder, use_cpu=True, bf16=False, report_to=[], **case["config"])
    model = LlamaForSequenceClassification(LlamaConfig.from_pretrained(folder, num_labels=1, pad_token_id=0))
    loaded = {"processing_class": PreTrainedTokenizerFast.from_pretrained(folder)}
    trainer = RewardTrainer(model, args=config, train_dataset=Dataset.from_dict(PAIR), **loaded)
    numbers = SimpleNamespace(logits=torch.cat([scores[::2], scores[1::2]])[:, None])
    inputs = {"attention_mask": given["mask"], "margin": given["rewards"][::2, 0]}
    loss = trainer.compute_loss(lambda **_: numbers, inputs)
    loss.backward()
    return {"loss": loss.detach(), "gradient": scores.grad}


def answer(case: dict[str, Any], given: Tensors, folder: str) -> Tensors:
    if case["trainer"] == "reward":
        return judge(case, given, folder)
    if case["trainer"] in PREFERENCES:
        return prefer(case, given, folder)
    given = {**given, **case.get("given", {})}
    mask = given["mask"]
    logprobs, entropies = (given[name].clone().requires_grad_() for name in ("logprobs", "entropies"))
    trainer = make_trainer(case, given, folder)
    now = {"model": given["proximal"], "reference": given["reference"], "entropies": entropies}

    def logprobs_and_entropies(self: Any, model: Any, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        return now["model" if model is self.model else "reference"], now["entropies"], None

    def generate(_: Any, prompts: list[str]) -> tuple[Any, ...]:
        ends = [5 if is_truncated else 1 for is_truncated in given["truncated"].tolist()]
        answers = [[5] * (length - 1) + [end] for length, end in zip(mask.sum(1).tolist(), ends, strict=True)]
        sampled = [row[:length].tolist() for row, length in zip(given["sampled"], mask.sum(1), strict=True)]
        start = ([[3]] * len(prompts), answers)
        return (
            (*start, [""] * len(prompts))
            if case["trainer"] == "rloo"
            else (*start, None, answers, sampled, {}, None, None)
        )

    trainer._get_per_token_logps_and_entropies = MethodType(logprobs_and_entropies, trainer)
    trainer._generate = MethodType(generate, trainer)
    trainer._calculate_rewards = lambda *_: given["rewards"]
    trainer.model.train()
    scored = trainer._generate_and_score_completions([{"prompt": "a"}] * len(mask))
    losses, num_parts = [], case.get("minibatches", 1)
    for part, at in zip(split_tensor_dict(scored, num_parts), torch.arange(len(mask)).chunk(num_parts), strict=True):
        now |= {"model": logprobs[at], "entropies": entropies[at]}
        losses.append(trainer._compute_loss(trainer.model, part))
    loss = torch.stack(losses).sum()
    loss.backward()
    slopes = torch.zeros_like(entropies) if entropies.grad is None else entropies.grad
    found = {"advantages": scored["advantages"].unsqueeze(1) * mask, "loss": loss.detach(), "gradient": logprobs.grad}
    coef = 0.0 if case["trainer"] == "rloo" else trainer.entropy_coef  # which has none
    return {**found, "entropy_gradient": slopes, "entropy_coef": torch.tensor(coef)}


def make_trainer(case: dict[str, Any], given: Tensors, folder: str) -> Any:
    trainer_class, config_class = TRAINERS[case["trainer"]]
    (rows, tokens), num_parts = given["mask"].shape, case.get("minibatches", 1)
    config = config_class(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=rows // num_parts,
        steps_per_generation=num_parts,
        gradient_accumulation_steps=1,
        num_iterations=2,  # with one, TRL takes the logprobs under training for the old ones
        num_generations=given["group"].bincount().max().item(),
        max_completion_length=tokens,
        pad_to_multiple_of=None,
        **case.get("config", {}),
    )
    trainer = trainer_class(
        folder,
        [lambda **_: None] * given["rewards"].shape[1],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"]}),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.use_vllm = case.get("use_vllm", False)
    return trainer


def save_model(folder: str) -> None:
    words = Tokenizer(WordLevel({word: number for number, word in enumerate("pe?abcdf")}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="p", eos_token="e", unk_token="?").save_pretrained(folder)
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, num_attention_heads=1, **sizes)).save_pretrained(folder)


if __name__ == "__main__":
    work = torch.load(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        torch.save({name: answer(case, work["tensors"], folder) for name, case in work["cases"].items()}, sys.argv[2])
