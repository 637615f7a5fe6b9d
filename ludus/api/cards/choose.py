"""Searches for the row size, cache pages and placement that use a number of GPUs best.

Knows: how much memory each part takes (`memory.py`).  Knows not: configurations, how GPUs are counted.
Invariants: no GPU is planned beyond its memory; a placement for N GPUs is also considered for N + 1, so that more GPUs
never make a worse plan; what the user has set is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from ludus.api.cards.memory import (
    GB,
    HANDOVER_BYTES,
    PAGE_TOKENS,
    ROW_BLOCK,
    WAITING_VLLM_BYTES,
    Job,
    MomentsName,
    RowCost,
    Training,
    host_bytes,
    reserved,
    sampling_parts,
    training_parts,
    waiting_parts,
)
from ludus.errors import UserError

EngineName = Literal["local", "server", "vllm", "shared", "elsewhere"]
"""shared: a vLLM and the trainer have one GPU in turns. elsewhere: the engine is on GPUs that are not part of the
plan."""

_FORM = re.compile(r"(\d+)x(\d+(?:\.\d+)?)")
# Rows this long keep a GPU busy; longer ones only save kernel launches. A longer sequence is a row of its own.
ENOUGH_ROW_TOKENS = 16_384
# A plan is good if it has rows this long, and cache pages for this many sequences of that length.
GOOD_ROW_TOKENS, GOOD_SEQUENCES = 8192, 8
# On a GPU that trains and samples, rows first get this share of the memory that is left.
ROW_SHARE = 1 / 3
# Numbers of ranks that are tried, and of GPUs over which one vLLM server may split its weights.
RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
TENSOR_PARALLEL = (1, 2, 4, 8)
# Numbers of ranks over which rows are cut, in the order in which they are tried.
CONTEXT_PARALLEL = (1, 2, 4, 8, 16)
VLLM_SHARE = 0.92  # of a GPU's memory: vLLM's own default


@dataclass(frozen=True, slots=True)
class Cards:
    """A number of equal GPUs."""

    count: int
    num_bytes: int
    """Usable memory of each."""

    def __str__(self) -> str:
        return f"{self.count} card{'' if self.count == 1 else 's'} of {self.num_bytes / GB:.1f} GB"

    @classmethod
    def read(cls, text: str) -> Cards:
        """`8x80`: 8 cards of 80 GB, of 10^9 bytes each. Raises UserError for another form."""
        match = _FORM.fullmatch(text.strip().lower())
        if match is None or not int(match[1]):
            raise UserError(f"cards={text!r} is not how cards are given; write COUNTxGB, such as 1x24 or 8x80")
        return cls(int(match[1]), int(float(match[2]) * GB))


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the user has set. None: the plan chooses."""

    ranks: int | None = None
    engine: EngineName | None = None
    replicas: int | None = None
    tensor_parallel: int | None = None
    has_checkpointing: bool | None = None
    moments: MomentsName | None = None
    in_host: bool | None = None
    row_tokens: int | None = None
    kv_bytes: int | None = None
    context_length: int | None = None
    least_tokens: int = 2048
    """A sequence of so many tokens has to fit, whatever the context length is."""
    tensor: int = 1
    """Ranks that compute each layer together. No plan chooses them."""
    context: int | None = 1
    """Ranks over which rows are cut besides. None: as few as a sequence of the context length needs."""

    def training(self, ranks: int, has_checkpointing: bool, moments: MomentsName, in_host: bool) -> Training:
        return Training(ranks, has_checkpointing, moments, in_host, self.tensor, self.context or 1)


@dataclass(frozen=True, slots=True)
class CardUse:
    """How the memory of each of `count` equally used GPUs is used."""

    what: str
    count: int
    parts: Mapping[str, int]
    """Bytes of each part."""
    is_tight: bool
    """Its memory decides how large rows or pages are; on other GPUs some may be left."""
    is_in_turn: bool = False
    """The same GPUs as those before, at another time."""

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement that fits."""

    card_bytes: int
    how: Training
    engine: EngineName
    replicas: int
    tensor_parallel: int
    row_tokens: int
    """Tokens of a micro-batch."""
    longest_tokens: int
    """Length of the longest sequence that fits as a row of its own."""
    num_pages: int
    """Of each engine. 0: the engine counts its pages itself."""
    kv_bytes: int
    """Of each engine."""
    kv_tokens: int
    """Tokens that each engine's cache holds."""
    is_good: bool
    """Rows and pages are as large as is ever useful."""
    rows_are_most: bool
    pages_are_most: bool
    """Longer rows, or more pages, would not help."""
    uses: tuple[CardUse, ...]
    host_bytes: int
    """Of the machine's memory, for what waits there or is never on a GPU."""

    @property
    def context_tokens(self) -> int:
        """Length of the longest sequence that can be trained, and that a vLLM in its turn starts with: it refuses less
        cache than one such sequence takes."""
        return min(self.longest_tokens, self.kv_tokens) if self.engine == "shared" else self.longest_tokens

    @property
    def num_sampling(self) -> int:
        """GPUs that only sample."""
        return self.replicas * self.tensor_parallel if self.engine in ("server", "vllm") else 0

    @property
    def num_cards(self) -> int:
        return sum(each.count for each in self.uses if not each.is_in_turn)

    @property
    def rank(self) -> tuple[object, ...]:
        """A sort key: the better plan has the greater one."""
        balance = min(self.longest_tokens / GOOD_ROW_TOKENS, self.kv_tokens / (GOOD_ROW_TOKENS * GOOD_SEQUENCES))
        is_exact, has_whole_layers = self.how.moments == "fp32", not self.how.has_checkpointing
        # where memory is short, the scarcer of rows and pages counts before speed
        scarcest = 1.0 if self.is_good else balance
        speed = self.num_sampling, has_whole_layers, balance, -self.how.ranks
        # ranks of one row trade heads in every layer, so rows are cut only where they must be
        return -self.how.context, not self.how.in_host, is_exact, self.is_good, scarcest, *speed


def choose(job: Job, cards: Cards, fixed: Fixed) -> Plan | None:
    """The best plan. None: nothing fits."""
    if job.is_quantized:  # weights in 4 bits are not shared out
        fixed = replace(fixed, ranks=1)
    contexts = contexts_of(job, fixed) if fixed.context is None else (fixed.context,)
    plans = (_best(job, cards, replace(fixed, context=each)) for each in contexts)
    return next((plan for plan in plans if plan is not None), None)


def contexts_of(job: Job, fixed: Fixed) -> tuple[int, ...]:
    """Numbers of ranks over which rows of this model can be cut, at least one head for each; 1 cuts nothing."""
    return tuple(each for each in CONTEXT_PARALLEL if each == 1 or each * fixed.tensor <= job.shape.num_heads)


def _best(job: Job, cards: Cards, fixed: Fixed) -> Plan | None:
    """The best plan with that many ranks over which rows are cut. None: nothing fits."""
    kinds: tuple[MomentsName, ...] = ("fp32", "bf16") if fixed.moments is None else (fixed.moments,)
    layers = (False, True) if fixed.has_checkpointing is None else (fixed.has_checkpointing,)
    # An optimizer whose state crosses the bus in every step costs seconds: only where nothing fits without. fp32 first:
    # any plan with exact moments is better than one without.
    places = (False, True) if fixed.in_host is None else (fixed.in_host,)
    for in_host, moments in product(places, kinds):
        plans = [
            _planned(
                job,
                cards.num_bytes,
                fixed,
                placement,
                fixed.training(placement.ranks, has_checkpointing, moments, in_host),
            )
            for placement in _placements(cards.count, fixed)
            for has_checkpointing in layers
        ]
        best = max((plan for plan in plans if plan is not None), key=lambda plan: plan.rank, default=None)
        if best is not None:
            return best
    return None


def sampling_pages(job: Job, *, card_bytes: int, fixed: Fixed) -> int | None:
    """Cache pages of an engine whose GPU nobody trains on. None: not even the smallest number fits."""
    if fixed.engine == "shared":  # this process has loaded the model as well
        card_bytes -= job.all_weight_bytes + WAITING_VLLM_BYTES
    found = _engine_use(job, card_bytes, _Placement(0, "server", 1), _Bounds.of(job, fixed))
    return None if found is None else found[0]


@dataclass(frozen=True, slots=True)
class _Placement:
    ranks: int
    engine: EngineName
    replicas: int
    tensor_parallel: int = 1


def _placements(num_cards: int, fixed: Fixed) -> Iterator[_Placement]:
    engines: tuple[EngineName, ...] = ("local", "server", "vllm") if fixed.engine is None else (fixed.engine,)
    for ranks in RANKS if fixed.ranks is None else (fixed.ranks,):
        if ranks > num_cards or ranks % (fixed.tensor * (fixed.context or 1)):
            continue
        for engine in engines:
            if engine in ("local", "elsewhere", "shared"):
                yield _Placement(ranks, engine, fixed.replicas or 1)
                continue
            given = (fixed.tensor_parallel,) if fixed.tensor_parallel is not None else TENSOR_PARALLEL
            for size in given if engine == "vllm" else (1,):
                if engine == "vllm" and size == 1 and fixed.engine is None:
                    continue  # our own server does the same
                replicas = fixed.replicas or (num_cards - ranks) // size
                if replicas and ranks + replicas * size <= num_cards:
                    yield _Placement(ranks, engine, replicas, size)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The smallest useful row and number of pages, and the largest that help."""

    least_row: int
    most_row: int
    least_pages: int
    most_pages: int

    @classmethod
    def of(cls, job: Job, fixed: Fixed) -> _Bounds:
        context = fixed.context_length or job.shape.context_length
        path = fixed.context_length or min(context, fixed.least_tokens)
        row = _whole_blocks(max(path, fixed.row_tokens or 0))
        pages, most = -(-path // PAGE_TOKENS), job.max_running * -(-context // PAGE_TOKENS)
        if fixed.kv_bytes is not None:
            pages = most = min(most, max(1, fixed.kv_bytes // job.page_bytes))
        enough = fixed.row_tokens or ENOUGH_ROW_TOKENS
        return cls(row, max(row, _whole_blocks(max(context, enough))), pages, most)


def _planned(job: Job, card_bytes: int, fixed: Fixed, place: _Placement, how: Training) -> Plan | None:
    bounds = _Bounds.of(job, fixed)
    if place.engine == "shared":
        found = _in_turns(job, card_bytes, how, bounds)
    else:
        found = _side_by_side(job, card_bytes, place, how, bounds)
    if found is None:
        return None
    row, num_pages, uses = found
    context, kv_tokens = fixed.context_length or job.shape.context_length, num_pages * PAGE_TOKENS
    good = min(context, GOOD_ROW_TOKENS)
    pages_are_most = num_pages >= bounds.most_pages
    return Plan(
        card_bytes=card_bytes,
        how=how,
        engine=place.engine,
        replicas=place.replicas,
        tensor_parallel=place.tensor_parallel,
        row_tokens=fixed.row_tokens or row,
        longest_tokens=row,
        num_pages=num_pages,
        kv_bytes=num_pages * job.page_bytes,
        kv_tokens=kv_tokens,
        is_good=row >= good and (pages_are_most or kv_tokens >= good * GOOD_SEQUENCES),
        rows_are_most=row >= bounds.most_row,
        pages_are_most=pages_are_most,
        uses=tuple(uses),
        host_bytes=host_bytes(job, how, in_turns=place.engine == "shared"),
    )


_Found = tuple[int, int, list[CardUse]]
"""Tokens of a row, number of pages, and how memory is used then."""


def _side_by_side(job: Job, card_bytes: int, place: _Placement, how: Training, bounds: _Bounds) -> _Found | None:
    """Where nobody waits for another. None: it does not fit."""
    is_local = place.engine == "local"
    parts = training_parts(job, how)
    own = {**parts, **(sampling_parts(job, 0) if is_local else {})}
    if is_local and how.ranks > 1:
        own["weights that sample"] = job.all_weight_bytes
    if job.teacher_bytes:
        own["teacher"] = job.teacher_bytes
    set_aside = reserved(card_bytes, ranks=how.ranks)
    left = card_bytes - sum(set_aside.values()) - sum(own.values())
    engines = place.replicas if is_local else 0
    cost = RowCost.of(job, how)
    split = _split(cost, job.page_bytes * engines, left, bounds)
    if split is None:
        return None
    row, num_pages = split
    own |= sampling_parts(job, num_pages * engines) if is_local else {}
    mine = {**own, "a row, or a step": cost(row), **set_aside}
    uses = [CardUse("trains and samples" if is_local else "trains", 1, mine, is_tight=True)]
    if how.ranks > 1:
        others = {**parts, "a row, or a step": cost(row), **set_aside}
        uses.append(CardUse("trains", how.ranks - 1, others, is_tight=not is_local))
    if place.engine == "elsewhere":
        num_pages = bounds.most_pages
    elif not is_local:
        found = _engine_use(job, card_bytes, place, bounds)
        if found is None:
            return None
        num_pages, use = found
        uses.append(use)
    return row, num_pages, uses


def _in_turns(job: Job, card_bytes: int, how: Training, bounds: _Bounds) -> _Found | None:
    """Where a vLLM sleeps while the trainer computes, and the trainer's state lies in the host's memory else. None: it
    does not fit."""
    parts, cost = training_parts(job, how), RowCost.of(job, how)
    set_aside = {"vLLM asleep": WAITING_VLLM_BYTES, **reserved(card_bytes)}
    trains = {**parts, **set_aside}
    samples = {**waiting_parts(job, how), "weights that sample": job.all_weight_bytes, **sampling_parts(job, 0)}
    samples |= set_aside
    rest, pages_rest = (card_bytes - sum(each.values()) for each in (trains, samples))
    num_pages = min(bounds.most_pages, pages_rest // job.page_bytes)
    # new weights are handed over before there are pages
    if cost(bounds.least_row) > rest or num_pages < bounds.least_pages or cost.step + HANDOVER_BYTES > pages_rest:
        return None
    row = _longest_row(cost, rest, bounds.least_row, bounds.most_row)
    trains["a row, or a step"] = cost(row)
    samples |= sampling_parts(job, num_pages)
    uses = [CardUse("trains", 1, trains, is_tight=True)]
    return row, num_pages, [*uses, CardUse("samples", 1, samples, is_tight=True, is_in_turn=True)]


def _split(cost: RowCost, page: int, left: int, bounds: _Bounds) -> tuple[int, int] | None:
    """Divides the memory that is left on a GPU: tokens of a row, and number of pages. None: not even the smallest fit.

    page: bytes of one; 0: there are no pages.
    """
    if left < 0 or cost(bounds.least_row) + bounds.least_pages * page > left:
        return None
    if not page:
        return _longest_row(cost, left, bounds.least_row, bounds.most_row), 0
    share = min(left - bounds.least_pages * page, int(left * ROW_SHARE))
    most = min(bounds.most_row, max(bounds.least_row, ENOUGH_ROW_TOKENS))
    row = _longest_row(cost, share, bounds.least_row, most)
    pages = min(bounds.most_pages, (left - cost(row)) // page)
    return _longest_row(cost, left - pages * page, row, bounds.most_row), pages


def _engine_use(job: Job, card_bytes: int, place: _Placement, bounds: _Bounds) -> tuple[int, CardUse] | None:
    """The pages of one engine on GPUs of its own, and how their memory is used. None: it does not fit."""
    size, shape = place.tensor_parallel, job.shape
    if shape.num_heads % size:
        return None
    weights = {"weights that sample": job.all_weight_bytes // size}
    step = sampling_parts(job, 0)
    set_aside = dict(reserved(card_bytes))
    if place.engine == "vllm":
        set_aside = {"what vLLM leaves": card_bytes - int(card_bytes * VLLM_SHARE)}
    left = card_bytes - sum((*weights.values(), *step.values(), *set_aside.values()))
    # if there are fewer key-value heads than GPUs, some GPUs hold the same head
    page = job.page_bytes // min(size, shape.num_kv_heads)
    pages = min(bounds.most_pages, left // page)
    if pages < bounds.least_pages:
        return None
    parts = {**weights, **step, "pages of keys and values": pages * page, **set_aside}
    return pages, CardUse("samples", place.replicas * size, parts, is_tight=True)


def _longest_row(cost: RowCost, most_bytes: int, least: int, most: int) -> int:
    """The longest row of whole blocks that takes at most `most_bytes`; never shorter than `least`."""
    low, high = least // ROW_BLOCK, most // ROW_BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle * ROW_BLOCK) <= most_bytes:
            low = middle
        else:
            high = middle - 1
    return low * ROW_BLOCK


def _whole_blocks(num_tokens: int) -> int:
    return -(-num_tokens // ROW_BLOCK) * ROW_BLOCK
