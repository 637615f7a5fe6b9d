"""Measures Ludus's training: steps on the same rows, compared with bare matrix products; and memory over many steps.

Knows: the trainer as the loop uses it.  Knows not: peers, pairs, rollouts.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.checks.bench.ceiling import finish, matrix_flops_per_s
from ludus.checks.bench.profile import TRAINING, Profiler
from ludus.checks.bench.workloads import MemoryWork, Tokens, TrainWork, random_tokens
from ludus.compat.config import Config
from ludus.engines.lease import ComputeLease
from ludus.loop.memory import peak_rss_mb, rss_mb
from ludus.models.load import LoadedModel, load_model
from ludus.trainer.step import ModelTrainer

# The first step allocates memory; from the second on it is reused.
WARM_UP_STEPS = 2
# Operations per token and weight: two forward, four backward (Kaplan et al., arXiv 2001.08361, sec. 2.1).
_FLOPS_PER_WEIGHT = 6
_LOGPROB = -10.0
"""Assumed sampled logprob of every token: about that of a token drawn uniformly."""


def measure_train(work: TrainWork) -> dict[str, Any]:
    """Seconds of each step, tokens a second of the median one, the matrix rate around them, and the peak of memory."""
    trainer, step = warmed_up(work)
    model = trainer.model
    device = model.head_weight.device
    below = matrix_flops_per_s(device)
    taken_s = [step() for _ in range(work.steps)]
    above = matrix_flops_per_s(device)
    product_flops_per_s = (below + above) / 2
    tokens_per_s = sum(map(len, work.rows)) / statistics.median(taken_s)
    # Only then is nearly all work in matrix products with whole weights.
    is_full = work.kind == "dense" and work.lora_rank is None
    flops_per_s = _FLOPS_PER_WEIGHT * num_parameters(model) * tokens_per_s
    return {
        "work": work.kind,
        "tokens_per_s": tokens_per_s,
        "steps_s": taken_s,
        "ceiling_share": flops_per_s / product_flops_per_s if is_full else None,
        "matrix_gflops_per_s": product_flops_per_s / 1e9,
        "peak_mb": peak_rss_mb(),
    }


def profile_train(work: TrainWork) -> dict[str, Any]:
    """The profile of a training step."""
    _, step = warmed_up(work)
    profiler = Profiler()
    profiler.start()
    for _ in range(work.steps):
        step()
    profiler.stop()
    return profiler.shares(TRAINING, num_steps=work.steps)


def trainer_of(config: Config) -> ModelTrainer:
    model = load_model(config.model, seed=config.seed)
    return ModelTrainer(model, config.trainer, config.algorithm, lease=ComputeLease())


def warmed_up(work: TrainWork) -> tuple[ModelTrainer, Callable[[], float]]:
    """A trainer, and its step on the work's rows, after a few warm-up steps."""
    trainer = trainer_of(training_config(work))
    step = training_step(trainer, work)
    for _ in range(WARM_UP_STEPS):
        step()
    return trainer, step


def training_config(work: TrainWork) -> Config:
    chosen = ["trainer.optimizer.lr=1e-6"]
    chosen += [] if work.lora_rank is None else [f"model.lora.rank={work.lora_rank}"]
    chosen += ["trainer.activation_checkpointing=true"] if work.checkpointing else []
    return work.config(*chosen)


def training_step(trainer: ModelTrainer, work: TrainWork) -> Callable[[], float]:
    """A function that makes one step on the work's rows, and returns its seconds."""
    device = trainer.model.head_weight.device
    sequences = [sequence_of(row, work.shared_tokens or 1, len(work.rows)) for row in work.rows]

    def step() -> float:
        started_at = time.perf_counter()
        batch = Batch.of(pack(sequences, row_tokens=trainer.settings.row_tokens), version=trainer.version)
        if work.kind == "dense":
            trainer.train_batch(batch)
            trainer.publish().copy_into_shared()
            finish(device)
            return time.perf_counter() - started_at
        trainer.forward_backward(batch)
        finish(device)
        taken_s = time.perf_counter() - started_at
        trainer.optimizer.forget_gradients()
        return taken_s

    return step


def sequence_of(token_ids: Tokens, first_target: int, num_rows: int) -> TrainSequence:
    """A row whose tokens from `first_target` on are trained."""
    num = len(token_ids) - first_target
    return TrainSequence(
        token_ids=tuple(token_ids),
        target_idx=tuple(range(first_target, len(token_ids))),
        advantages=(1.0,) * num,
        weights=(1.0 / (num * num_rows),) * num,
        logprobs=(_LOGPROB,) * num,
        versions=(0,) * num,
        temperatures=(1.0,) * num,
    )


def num_parameters(model: LoadedModel) -> int:
    """Number of weights by which a token is multiplied: all but the input embeddings, unless they are tied to the
    head."""
    embedding = model.embedding.weight
    counted: int = sum(parameter.numel() for parameter in model.module.parameters())
    return counted if embedding is model.head_weight else counted - embedding.numel()


def measure_memory(work: MemoryWork) -> dict[str, Any]:
    """Resident memory after every step, and the slope of the line through it once the first fifth is over."""
    trainer = trainer_of(work.config("trainer.row_tokens=512"))
    rng = random.Random(work.seed)
    resident_mb = []
    for _ in range(work.steps):
        shared = random_tokens(rng, rng.randrange(20, 200), work.vocab_size)
        rows = [shared + random_tokens(rng, rng.randrange(4, 64), work.vocab_size) for _ in range(8)]
        sequences = [sequence_of(row, len(shared), len(rows)) for row in rows]
        trainer.train_batch(Batch.of(pack(sequences, row_tokens=512), version=trainer.version))
        trainer.publish().copy_into_shared()
        resident_mb.append(rss_mb())
    settled = resident_mb[len(resident_mb) // 5 :]
    slope = statistics.linear_regression(range(len(settled)), settled).slope if len(settled) > 1 else 0.0
    return {
        "slope_mb_per_step": slope,
        "rss_mb": [resident_mb[idx] for idx in range(0, work.steps, max(1, work.steps // 20))],
        "peak_mb": peak_rss_mb(),
    }
