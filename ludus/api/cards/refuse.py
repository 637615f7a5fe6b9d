"""Explains why a run does not fit on its GPUs, and finds the smallest change with which it would.

Knows: plans, which settings a user could give up.  Knows not: configurations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ludus.api.cards.choose import RANKS, Cards, Fixed, choose, contexts_of
from ludus.api.cards.memory import GB, Job, training_parts

_RANK = 16  # of the adapters that are suggested


def refusal(job: Job, cards: Cards, fixed: Fixed) -> str:
    """The error's text: why nothing fits, in figures, and the smallest change with which it would."""
    in_host = True if fixed.in_host is None else fixed.in_host
    how = fixed.training(fixed.ranks or 1, bool(fixed.has_checkpointing), fixed.moments or "fp32", in_host)
    parts = training_parts(job, how)
    shown = ", ".join(f"{name} {num_bytes / GB:.1f} GB" for name, num_bytes in parts.items())
    total = sum(parts.values()) / GB
    what = "all weights" if job.lora is None else "adapters"
    size = f"{job.shape.name} of {job.shape.num_weights / GB:.2f} billion weights"
    return (
        f"{size} does not fit on {cards}, trained by {what} with trainer.ranks={how.ranks}: {total:.1f} GB lie on a "
        f"card before the first row and the first page ({shown}). {_nearest(job, cards, fixed)}"
    )


def _nearest(job: Job, cards: Cards, fixed: Fixed) -> str:
    for words, other_job, num_cards, other in _alternatives(job, cards, fixed):
        plan = choose(other_job, Cards(num_cards, cards.num_bytes), other)
        if plan is not None:
            placed = f" (trainer.ranks={plan.how.ranks}, engine.kind={plan.engine}, engine.replicas={plan.replicas})"
            return f"The nearest that fits: {words}{placed if plan.num_cards > 1 else ''}"
    return "Nothing near fits: a smaller model, or larger cards"


def _alternatives(job: Job, cards: Cards, fixed: Fixed) -> Iterator[tuple[str, Job, int, Fixed]]:
    count = cards.count
    exact = replace(fixed, moments=None, has_checkpointing=None, in_host=None)
    kept = "trainer.offload, trainer.optimizer.moments and trainer.activation_checkpointing"
    yield f"{kept} left to the plan", job, count, exact
    if fixed.engine == "vllm" and fixed.ranks in (None, 1):
        turns = replace(exact, ranks=1, engine="shared", replicas=1, tensor_parallel=None)
        yield "vLLM on the trainer's card in turns, engine.placement=shared", job, count, turns
    small = replace(exact, row_tokens=None, kv_bytes=None, context_length=None)
    if fixed.ranks is not None and fixed.context is not None:
        for rows in contexts_of(job, fixed):
            if rows > fixed.context and fixed.ranks % (rows * fixed.tensor) == 0:
                cut = replace(exact, context=rows)
                yield f"rows cut over ranks, trainer.context_parallel={rows}", job, count, cut
    yield "trainer.row_tokens, engine.kv_bytes and model.context_length left to the plan", job, count, small
    smallest = replace(small, ranks=None, engine=None, replicas=None, tensor_parallel=None)
    if count > 1:
        yield f"the {count} cards shared out as `ludus plan` does", job, count, smallest
    adapted, words = job, ""
    if job.lora is None:
        adapted, words = replace(job, lora=(_RANK, tuple(job.shape.linears))), f"adapters, model.lora.rank={_RANK}"
        yield words, adapted, count, small
        if count > 1:
            yield f"{words}, and the cards shared out", adapted, count, smallest
    if not job.is_quantized:
        words = f"{words}, over" if words else "adapters over"
        over = f"{words} weights in 4 bits, model.quantization=nf4"
        yield over, replace(adapted, is_quantized=True), count, small
        if count > 1:
            yield f"{over}, and the cards shared out", replace(adapted, is_quantized=True), count, smallest
    for more in RANKS:
        if more > count:
            yield f"{more} such cards", job, more, smallest
