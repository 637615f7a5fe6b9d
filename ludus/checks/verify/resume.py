"""Checks that a killed run resumes as if undisturbed: no recorded token is lost, and the final weights are the same.

Knows: processes, run folders, model files.  Knows not: what happens inside a run.
The runs are `ludus train` in separate processes, killed with SIGKILL.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.checks.verify.training import EPISODES_A_STEP, Training, digest, write_run
from ludus.checks.verify.verdict import MODEL, Verdict
from ludus.errors import UserError
from ludus.models.resolve import resolve_model
from ludus.runs.codec import encode_episode
from ludus.runs.store import RunStore
from ludus.types import Episode

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ResumeResult(Verdict):
    model: str
    algorithm: str
    ranks: int
    """Ranks of the trainer."""
    seed: int
    steps: int
    killed_at_step: int
    episodes_before_kill: int
    tokens_before_kill: int
    tokens_lost: int
    """Tokens recorded before the kill that are missing from, or changed in, the resumed run's record."""
    tokens_recalled: int
    """Tokens recorded before the kill that the resumed run reused instead of sampling again."""
    steps_resumed: int
    """Steps in the record of the resumed run."""
    weights_equal: bool
    """Whether the final models and the state of the trainer, including a critic's, are equal to the last bit."""

    @property
    def ok(self) -> bool:
        return self.tokens_lost == 0 and self.weights_equal and self.steps_resumed == self.steps


def verify_resume(
    *,
    kill_at_step: int = 3,
    steps: int = 5,
    algorithm: str = "grpo",
    ranks: int = 1,
    model: str = MODEL,
    seed: int = 0,
) -> ResumeResult:
    """Does a run that was killed go on as if nothing had happened?

    `ludus train` is killed with SIGKILL in the middle of a step, resumed,
    and compared with a run left alone: no recorded token may be lost, and
    the final weights must be equal to the last bit, those of a critic and
    the moments of the optimizer too.

    Example:  ludus verify resume --kill-at-step 3 --algorithm ppo --ranks 2

    Raises UserError if the run ends before the kill.
    """
    if not 1 <= kill_at_step <= steps:
        raise UserError(f"--kill-at-step {kill_at_step} is not a step of this run; it has steps 1 to {steps} (--steps)")
    with tempfile.TemporaryDirectory(prefix="ludus-resume-") as scratch:
        folder = Path(scratch)
        trained = {"algorithm": {"name": algorithm}, "trainer": {"ranks": ranks, "optimizer": {"lr": 1e-4}}}
        write_run(folder, resolve_model(model).resolve(), seed, steps, trained)
        Training(folder, "alone").finish()
        seen = _kill_at(Training(folder, "killed"), folder / "runs" / "killed", kill_at_step, random.Random(seed))
        with RunStore.open(folder / "runs" / "killed") as store:
            before = [*store.episodes()]
        Training(folder, "killed", "--resume").finish()
        with RunStore.open(folder / "runs" / "killed") as store:
            after = [*store.episodes()]
            metrics = store.metrics()
        return ResumeResult(
            model=model,
            algorithm=algorithm,
            ranks=ranks,
            seed=seed,
            steps=steps,
            killed_at_step=kill_at_step,
            episodes_before_kill=len(before),
            tokens_before_kill=sum(episode.session.num_sampled_tokens for episode in before),
            tokens_lost=_tokens_lost(seen, before, after),
            tokens_recalled=sum(_recalled(each) for step, each in metrics if step >= kill_at_step),
            steps_resumed=len(metrics),
            weights_equal=digest(folder / "runs" / "alone") == digest(folder / "runs" / "killed"),
        )


def _recalled(metrics: Mapping[str, float]) -> int:
    """Number of tokens of a step that were reused instead of sampled."""
    return int(metrics["ledger/sampled"] - metrics["engine/sampled_tokens"])


def _kill_at(training: Training, run: Path, step: int, rng: random.Random) -> list[str]:
    """Kill the run in the middle of the step; returns the ids of the episodes recorded by then."""
    wanted = rng.randint(1, EPISODES_A_STEP)
    try:
        while training.popen.poll() is None:
            rows: Sequence[Mapping[str, object]] = []
            if (run / "writer.lock").exists():  # otherwise the run's folder is not complete yet
                with RunStore.open(run) as store:
                    rows = store.episode_rows()
            if sum(row["step"] == step for row in rows) >= wanted:
                return [str(row["id"]) for row in rows]
            time.sleep(_POLL_S)
    finally:
        training.kill()
    raise training.failed(f"the run ended before it could be killed at step {step}")


def _tokens_lost(seen: Sequence[str], before: Sequence[Episode], after: Sequence[Episode]) -> int:
    """Number of tokens recorded before the kill that are not, unchanged, in the final record; a missing episode that
    was only seen by id counts as one token."""
    missing = len(set(seen) - {episode.id for episode in before})
    held = Counter(encode_episode(episode) for episode in after)
    lost = Counter(encode_episode(episode) for episode in before) - held
    counts = {encode_episode(episode): episode.session.num_sampled_tokens for episode in before}
    return missing + sum(counts[key] * count for key, count in lost.items())
