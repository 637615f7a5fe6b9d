"""The plan of a configuration on GPUs: made before a run starts, shown by `ludus plan`, filled into keys not given.

Knows: which keys a plan sets, how GPUs are counted.  Knows not: the arithmetic of memory (`memory.py`).
Invariants: without a GPU nothing changes; keys that the user gave are not changed; a run that cannot fit is refused
before its model is loaded, and the error names the smallest change with which it would.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from ludus.algorithms.resolve import algorithm_of
from ludus.api.cards.choose import Cards, EngineName, Fixed, Plan, choose, sampling_pages
from ludus.api.cards.memory import GB, Job
from ludus.api.cards.refuse import refusal
from ludus.api.cards.shape import ModelShape
from ludus.config import Config
from ludus.engines.settings import BatchSettings, ServerSettings
from ludus.engines.vllm.settings import VllmSettings
from ludus.errors import ConfigError, UserError
from ludus.machine import free_memory_bytes
from ludus.models.resolve import adapter_base, resolve_model
from ludus.models.settings import LoraSettings
from ludus.processes.cards import Card, find_cards
from ludus.processes.placement import SlurmScheduler
from ludus.runs.folder import read_config
from ludus.settings import leaves
from ludus.teachers.settings import ModelTeacherSettings, PolicyTeacherSettings

_log = logging.getLogger(__name__)
ConfigT = TypeVar("ConfigT", bound=Config)

_WEIGHT_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}  # auto is bf16 or fp16 on a GPU
_ENGINES = ("local", "server", "vllm")
_CONTEXT = "trainer.context_parallel"
_PLANNED = (
    "trainer.row_tokens",
    "trainer.activation_checkpointing",
    "trainer.optimizer.moments",
    "trainer.offload",
    _CONTEXT,
    "engine.kv_bytes",
    "engine.stream_interval",
    "model.context_length",
)
_PLACED = (
    *("trainer.ranks", "trainer.tensor_parallel"),
    *("engine.kind", "engine.placement", "engine.replicas"),
)
# Of a vLLM on cards: one core reads 31,000 tokens a second one by one, and has more to do than that; 176,000 like this.
_TOGETHER = 16
# A prompt this long, followed by the longest answer, has to fit.
_LEAST_PROMPT = 1024


def planned(config: ConfigT, *, trains: bool = True, goes_on: bool = False) -> ConfigT:
    """The configuration with the plan for this machine's GPUs filled into the keys that were not given.

    trains: False: the model only samples.
    goes_on: the run exists and is resumed: it keeps the plan that it began with, though less memory may be free now.
    Raises ConfigError if it cannot fit, naming the smallest change with which it would.
    """
    begun = _as_begun(config) if goes_on else None
    here = _cards_here(config, is_whole=begun is not None)
    if here is None:
        return config
    try:
        job = job_of(config)
    except UserError as error:
        _log.warning("no plan is made, and rows and pages stay as they are given: %s", error)
        return begun or config
    if not trains:
        return _with_pages(config, job, here)
    return _with_plan(begun or config, job, here, is_begun=begun is not None)


def plan_for(config: Config, cards: Cards) -> tuple[Plan, dict[str, Any]]:
    """The best plan of a run on these GPUs, placement included, and the keys that say it.

    Raises ConfigError if nothing fits, naming the smallest change with which it would.
    """
    job, fixed = job_of(config), _given_of(config)
    plan = choose(job, cards, fixed)
    if plan is None:
        raise ConfigError(refusal(job, cards, fixed))
    return plan, {**_memory_keys(plan, job, config), **_placement_keys(plan, config)}


def counted_cards() -> Cards:
    """The GPUs of this machine, all counted as large as the smallest. Raises UserError if there is none, or none tells
    its memory."""
    return _alike(find_cards())


def job_of(config: Config) -> Job:
    """What the configuration trains and samples. Raises UserError for a model that cannot be planned."""
    lora, shape = config.model.lora, ModelShape.read(_base_folder(config.model.path))
    if lora is None and adapter_base(resolve_model(config.model.path)) is not None:
        lora = LoraSettings()  # an adapter of about that size is trained further
    needs, engine = algorithm_of(config.algorithm).needs, config.engine
    batch = engine if isinstance(engine, BatchSettings) else BatchSettings()
    return Job(
        shape=shape,
        weight_bytes=_WEIGHT_BYTES[config.model.dtype],
        lora=None if lora is None else (lora.rank, lora.target_modules or tuple(shape.linears)),
        has_critic=config.has_critic and config.critic.model == "separate",
        has_reference=needs.reference or "reference_logprobs" in needs.measured,
        has_several_steps=config.algorithm.minibatches > 1 or config.algorithm.epochs > 1,
        max_running=batch.max_running,
        max_batch_tokens=batch.max_batch_tokens,
        teacher_bytes=_teacher_bytes(config, shape),
        is_quantized=config.model.quantization != "none",
    )


def with_settings(config: ConfigT, keys: Mapping[str, Any]) -> ConfigT:
    """The configuration with these dotted keys set."""
    for key, value in keys.items():
        config = cast(ConfigT, _with(config, key.split("."), value))
    return config


def _with(settings: Any, path: Sequence[str], value: Any) -> Any:
    name, *below = path
    inner = _with(getattr(settings, name), below, value) if below else value
    return settings.model_copy(update={name: inner})


def _with_plan(config: ConfigT, job: Job, here: Cards, *, is_begun: bool) -> ConfigT:
    """is_begun: the configuration has a plan, which only is compared with the cards."""
    fixed = _as_started(config)
    num_engines = 0 if fixed.engine in ("local", "shared") else config.engine.num_started * config.engine.cards_each
    is_counted = config.scheduler.type == "local"
    cards = here if is_counted else replace(here, count=config.trainer.ranks + num_engines)
    plan = choose(job, cards, fixed)
    lacking = None if plan is None else _lacking_memory(plan)
    if lacking is not None and (fixed.engine == "shared" or fixed.in_host):
        raise ConfigError(lacking)
    if plan is None or lacking is not None:
        # what was not asked for, and has no room, is no plan
        refused = refusal(job, cards, fixed if plan is None else replace(fixed, in_host=False))
        refused += "" if lacking is None else f". {lacking}"
        is_given = _is_given(config, "trainer.row_tokens") and _is_given(config, "engine.kv_bytes")
        if not (is_begun or is_given):
            raise ConfigError(f"{refused}. With trainer.row_tokens and engine.kv_bytes given, nothing is planned")
        why = "the run was begun with this plan" if is_begun else "trainer.row_tokens and engine.kv_bytes are given"
        _log.warning("%s, so this starts all the same: %s", why, refused)
        return config
    num_used = plan.num_cards + (num_engines if fixed.engine == "elsewhere" else 0)
    if is_counted and here.count > num_used:
        _log.warning("%d of %d cards are used; `ludus plan` tells what uses them all", num_used, here.count)
    if is_begun:
        return config
    keys = _memory_keys(plan, job, config)
    _log.info("plan.made cards=%s keys=%s", cards, keys)
    return with_settings(config, keys)


def _lacking_memory(plan: Plan) -> str | None:
    """What of the plan has no room in this machine's memory, and what to do. None: all has; or ranks may be on other
    machines as well."""
    num_bytes = plan.host_bytes
    free = free_memory_bytes() if num_bytes and plan.how.ranks == 1 else None
    if free is None or free >= num_bytes:
        return None
    in_turns = plan.engine == "shared"
    key = "engine.placement=shared" if in_turns else "trainer.offload=optimizer"
    what = "masters, moments and the weights of a sleeping vLLM" if in_turns else "masters and moments"
    return (
        f"{key} keeps {num_bytes / GB:.1f} GB in the machine's memory, {what}, and {free / GB:.1f} GB are free: free "
        "some, train adapters (model.lora.rank=16), or set trainer.optimizer.moments=bf16"
    )


def _as_begun(config: ConfigT) -> ConfigT | None:
    """The configuration with what was planned when its run began: other rows round sums differently, and other pages
    preempt other calls. None: that is not known, or the run's processes are others now.
    """
    try:
        before = dict(leaves(read_config(config.folder)))
    except UserError:  # a missing or damaged file is reported when the run is opened
        return None
    paths = {key: tuple(key.split(".")) for key in (*_PLANNED, *_PLACED)}
    # rows that were planned for some ranks of a row do not fit others
    fixed = (*_PLACED, _CONTEXT) if _is_given(config, _CONTEXT) else _PLACED
    if any(before.get(paths[key]) != _value(config, key) for key in fixed):
        return None
    kept = [key for key in _PLANNED if paths[key] in before and not _is_given(config, key)]
    return with_settings(config, {key: before[paths[key]] for key in kept})


def _with_pages(config: ConfigT, job: Job, here: Cards) -> ConfigT:
    is_counted = config.engine.kind == "local" or config.engine.placement == "shared"
    if not is_counted or _is_given(config, "engine.kv_bytes"):
        return config
    pages = sampling_pages(job, card_bytes=here.num_bytes, fixed=_as_started(config))
    if pages is None:
        raise ConfigError(
            f"{job.shape.name} does not fit on a card of {here.num_bytes / GB:.1f} GB: its weights take "
            f"{job.all_weight_bytes / GB:.1f} GB, and pages for one path come on top; choose a smaller model"
        )
    return with_settings(config, {"engine.kv_bytes": max(1, pages // config.engine.replicas) * job.page_bytes})


def _memory_keys(plan: Plan, job: Job, config: Config) -> dict[str, Any]:
    """The plan's memory settings as keys, without those that were given."""
    keys: dict[str, Any] = {
        "trainer.row_tokens": plan.row_tokens,
        "trainer.activation_checkpointing": plan.how.has_checkpointing,
        "trainer.optimizer.moments": plan.how.moments,
    }
    if plan.how.in_host:
        keys["trainer.offload"] = "optimizer"
    if plan.how.context > 1:
        keys[_CONTEXT] = plan.how.context
    if plan.engine in ("local", "server", "shared"):  # the others count their pages themselves
        keys["engine.kv_bytes"] = plan.kv_bytes
    if "vllm" in (plan.engine, config.engine.kind):
        keys["engine.stream_interval"] = _TOGETHER
    if plan.context_tokens < job.shape.context_length:
        keys["model.context_length"] = plan.context_tokens
    return {key: value for key, value in keys.items() if not _is_given(config, key)}


def _placement_keys(plan: Plan, config: Config) -> dict[str, Any]:
    """The plan's processes as keys, without those that were given the same value."""
    keys: dict[str, Any] = {}
    if plan.how.ranks > 1:
        keys |= {"trainer.ranks": plan.how.ranks, "scheduler.trainer.gpus": 1}
    if (plan.how.ranks > 1 or plan.num_sampling) and isinstance(config.scheduler, SlurmScheduler):
        keys["scheduler.head.gpus"] = 1
    if plan.num_sampling:
        keys |= {"engine.kind": plan.engine, "engine.replicas": plan.replicas}
        keys["scheduler.engine.gpus"] = plan.tensor_parallel
    if plan.engine == "vllm":
        keys["engine.tensor_parallel_size"] = plan.tensor_parallel
    return {key: value for key, value in keys.items() if not _is_given(config, key) or _value(config, key) != value}


def _teacher_bytes(config: Config, shape: ModelShape) -> int:
    """Of the weights of a teacher in this process, if it is on the GPU."""
    teacher = config.teacher
    if isinstance(teacher, ModelTeacherSettings) and teacher.device != "cpu":
        with suppress(UserError):  # the path of a run, which is resolved on loading: taken for as large as the policy
            shape = ModelShape.read(_base_folder(teacher.path))
        return shape.num_weights * _WEIGHT_BYTES[teacher.dtype]
    is_kept = isinstance(teacher, PolicyTeacherSettings) and teacher.weights == "first"
    return shape.num_weights * _WEIGHT_BYTES[config.model.dtype] if is_kept else 0


def _cards_here(config: Config, *, is_whole: bool) -> Cards | None:
    """The GPUs of this machine that the run may use. None: it runs on the CPU.

    is_whole: as large as if nobody else held any of their memory.
    """
    found = () if config.model.device == "cpu" else find_cards()
    if not found:
        return None
    try:
        import torch

        from ludus.models.device import card_of, choose_device
    except ModuleNotFoundError:  # loading the model will say so
        return None
    device = choose_device(config.model.device)
    if device.type != "cuda":
        return None
    own = card_of(device, found)
    assert own is not None, "cards were found"
    free = torch.cuda.mem_get_info(device)[0] if own.free_bytes is None else own.free_bytes
    # memory that this process freed and torch keeps cached is still usable by it
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    is_alone = config.trainer.ranks == 1 and (not config.engine.num_started or config.engine.placement == "shared")
    others = [] if is_alone else [each for each in found if each.name != own.name]
    cards = [replace(own, free_bytes=free + kept), *others]
    if is_whole:
        cards = [replace(each, free_bytes=each.num_bytes or each.free_bytes) for each in cards]
    return replace(_alike(cards), count=len(found))


def _alike(cards: Sequence[Card]) -> Cards:
    sizes = [each.free_bytes or each.num_bytes for each in cards]
    known = [size for size in sizes if size is not None]
    if not known:
        what = "does not tell its memory" if cards else "is not there"
        raise UserError(f"a card to plan for {what}; name cards, such as --cards 1x24 or --cards 8x80")
    return Cards(len(cards), min(known))


def _as_started(config: Config) -> Fixed:
    """What `planned` does not choose: the keys that were given, and the placement of processes."""
    trainer, engine = config.trainer, config.engine
    is_counted = engine.kind in _ENGINES and not (isinstance(engine, ServerSettings) and engine.urls)
    batch = engine if isinstance(engine, BatchSettings) else BatchSettings()
    given = {
        "has_checkpointing": ("trainer.activation_checkpointing", trainer.activation_checkpointing),
        "moments": ("trainer.optimizer.moments", trainer.optimizer.moments),
        "in_host": ("trainer.offload", trainer.offload == "optimizer"),
        "row_tokens": ("trainer.row_tokens", trainer.row_tokens),
        "kv_bytes": ("engine.kv_bytes", batch.kv_bytes),
    }
    return Fixed(
        ranks=trainer.ranks,
        tensor=trainer.tensor_parallel,
        context=trainer.context_parallel if _is_given(config, _CONTEXT) else None,
        engine="shared"
        if engine.placement == "shared"
        else cast(EngineName, engine.kind if is_counted else "elsewhere"),
        replicas=engine.replicas,
        tensor_parallel=engine.tensor_parallel_size if isinstance(engine, VllmSettings) else 1,
        context_length=config.model.context_length,
        least_tokens=max(Fixed().least_tokens, _LEAST_PROMPT + (config.gconfig.max_new_tokens or 0)),
        **cast(Any, {name: value for name, (key, value) in given.items() if _is_given(config, key)}),
    )


def _given_of(config: Config) -> Fixed:
    """What `plan_for`, which may place processes too, does not choose."""
    fixed = _as_started(config)
    is_open = fixed.engine == "local" and not _is_given(config, "engine.replicas")
    return replace(
        fixed,
        ranks=fixed.ranks if _is_given(config, "trainer.ranks") else None,
        engine=None if is_open and not _is_given(config, "trainer.ranks") else fixed.engine,
        replicas=fixed.replicas if _is_given(config, "engine.replicas") else None,
        tensor_parallel=fixed.tensor_parallel if _is_given(config, "engine.tensor_parallel_size") else None,
    )


def _base_folder(path: str) -> Path:
    folder = resolve_model(path)
    base = adapter_base(folder)
    return folder if base is None else resolve_model(base)


def _value(config: Config, key: str) -> Any:
    settings: Any = config
    for name in key.split("."):
        settings = getattr(settings, name)
    return settings


def _is_given(config: Config, key: str) -> bool:
    settings: Any = config
    for name in key.split("."):
        if name not in settings.model_fields_set:
            return False
        settings = getattr(settings, name)
    return True
