"""Opens the model of a run with what works on its weights in this process: engine, recorder, trainer.

Knows: how they are built and put together.  Knows not: agents, data, the loop.
This is where torch is first imported; if it is missing, the error says what to install.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.api.cards.start import with_settings
from ludus.api.cores import HEAD, shared_cores
from ludus.api.engines import open_engines
from ludus.api.processes import Processes, open_processes
from ludus.config import Config, ConfigT
from ludus.engines.base import Engine
from ludus.engines.lease import ComputeLease
from ludus.engines.settings import ServerSettings
from ludus.episodes.keys import SessionKeys
from ludus.episodes.names import DEFAULT_MODEL, ModelNames
from ludus.episodes.recorder import Recorder
from ludus.errors import UserError
from ludus.gateway.server import GatewayServer
from ludus.machine import Machine
from ludus.models.resolve import adapter_base, resolve_model
from ludus.processes.garbage import collecting_later
from ludus.rollout.runtime import AgentRuntime
from ludus.runs.folder import read_config
from ludus.settings import Path_, leaves
from ludus.text.chat import ChatText

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel
    from ludus.trainer.sharded import ShardedTrainer
    from ludus.trainer.step import ModelTrainer

INSTALL_HINT = "pip install 'ludus[train]'"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A loaded model, and the engine and recorder that answer with its weights."""

    model: LoadedModel
    text: ChatText
    engine: Engine
    recorder: Recorder
    lease: ComputeLease
    chat_template: str | None
    """The text of the template, if it is not the model's own."""
    processes: Processes
    """The run's other processes; the engine may be one of them."""

    def trainer(self, config: Config) -> ModelTrainer:
        """A trainer of the same weights, in this process only."""
        from ludus.trainer.critic import load_critic
        from ludus.trainer.step import ModelTrainer

        critic = load_critic(config.model, config.critic, seed=config.seed) if config.has_critic else None
        trainer = ModelTrainer(
            self.model,
            config.trainer,
            config.algorithm,
            lease=self.lease,
            tokenizer=self.text.tokenizer,
            seed=config.seed,
            critic=critic,
        )
        if self.engine.shares_card:
            trainer.offload()
        return trainer

    @asynccontextmanager
    async def learner(self, config: Config) -> AsyncIterator[ModelTrainer | ShardedTrainer]:
        """The trainer, on as many ranks as the configuration says, until the block ends."""
        if config.trainer.ranks == 1:
            yield self.trainer(config)
            return
        sampling = None if isinstance(config.engine, ServerSettings) else self.model
        async with self.processes.ranks(self.text.tokenizer, sampling=sampling) as trainer:
            yield trainer

    def runtime(self, config: Config) -> AgentRuntime:
        """Where agents play. Its gateway listens on this machine only, unless rollout workers may be on others."""
        host = config.scheduler.address if config.rollout.num_workers else "127.0.0.1"
        return AgentRuntime(self.recorder, GatewayServer(SessionKeys()), host=host)

    def save(self, learner: ModelTrainer | ShardedTrainer, folder: Path) -> None:
        """Write the trained model in the form that plain transformers or peft load."""
        learner.export(folder, chat_template=self.chat_template)


def _load_libraries() -> None:
    """Import torch and transformers, which takes seconds. Raises UserError if one of them is missing."""
    try:
        with collecting_later():
            import ludus.models.load  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"sampling and training in this process need {error.name!r}: {INSTALL_HINT}") from error


def settled(config: ConfigT, *, goes_on: bool = False) -> ConfigT:
    """The configuration with its automatic values (dtype, way of weights, cores) decided, the same in all processes.

    goes_on: the run exists and is resumed: it keeps what was decided when it began, even on another machine.
    """
    before: Mapping[Path_, Any] = {}
    if goes_on:
        with suppress(UserError):  # a missing or damaged file is reported when the run is opened
            before = dict(leaves(read_config(config.folder)))
    return _with_cores(_with_handover(_with_dtype(config, before)), before)


def _with_dtype(config: ConfigT, before: Mapping[Path_, Any]) -> ConfigT:
    if config.model.dtype != "auto":
        return config
    _load_libraries()
    from ludus.models.dtype import with_dtype

    model = with_dtype(config.model)
    if (dtype := before.get(("model", "dtype"))) not in (None, "auto"):
        model = model.model_copy(update={"dtype": dtype})
    return config.model_copy(update={"model": model})


def _with_handover(config: ConfigT) -> ConfigT:
    """On a card that an engine shares with the trainer, whole models are handed over within its memory."""
    engine, model = config.engine, config.model
    if engine.placement == "split" or not isinstance(engine, ServerSettings) or engine.weights != "auto":
        return config
    if model.lora is not None or adapter_base(resolve_model(model.path)) is not None:
        return config
    _load_libraries()
    from ludus.models.device import choose_device

    return with_settings(config, {"engine.weights": "ipc"}) if choose_device(model.device).type == "cuda" else config


def _with_cores(config: ConfigT, before: Mapping[Path_, Any]) -> ConfigT:
    """Another number of threads rounds sums differently, so a resumed run with as many processes keeps its numbers of
    cores, if this machine has them."""
    cores = Machine.look(seconds=0).most_threads
    shares = shared_cores(config, cores)
    counts = {("engine", "replicas"): config.engine.replicas, ("trainer", "ranks"): config.trainer.ranks}
    is_alike = all(before.get(path) == count for path, count in counts.items())
    chosen = {}
    for name in shares.keys() & {"engine", "trainer"}:
        role = config.scheduler.role(name)
        if role.cpus is None:
            known = before.get(("scheduler", name, "cpus")) if is_alike else None
            is_kept = known is not None and known <= cores
            chosen[name] = role.model_copy(update={"cpus": known if is_kept else float(shares[name])})
    if not chosen:
        return config
    return config.model_copy(update={"scheduler": config.scheduler.model_copy(update=chosen)})


def _with_targets(config: ConfigT, model: LoadedModel) -> ConfigT:
    """The configuration with `target_modules` filled in from the model: some engines need it before they load."""
    lora, adapter = config.model.lora, model.adapter_config
    if lora is None or lora.target_modules is not None or adapter is None:
        return config
    named = lora.model_copy(update={"target_modules": tuple(adapter["target_modules"])})
    return config.model_copy(update={"model": config.model.model_copy(update={"lora": named})})


@asynccontextmanager
async def open_local(config: Config, *, is_run: bool = True) -> AsyncIterator[LocalModel]:
    """The model that the configuration names, loaded, with an engine that runs until the block ends.

    is_run: as for `open_processes`.
    """
    _load_libraries()
    from ludus.models.load import load_model
    from ludus.models.threads import computing_within

    config = settled(config)
    # If servers sample and ranks train, this process does not compute with these weights.
    is_mapped = isinstance(config.engine, ServerSettings) and config.trainer.ranks > 1
    with collecting_later():
        model = load_model(config.model, seed=config.seed, is_mapped=is_mapped)
    config = _with_targets(config, model)
    text = ChatText.load(model.folder, **config.model.chat)
    lease = ComputeLease()
    template = None if config.model.chat_template is None else text.template.source
    names = ModelNames(DEFAULT_MODEL, (config.model.path,), config.model.served_names)
    shares = shared_cores(config, Machine.look(seconds=0).most_threads)
    async with AsyncExitStack() as stack:
        stack.enter_context(computing_within(shares.get(HEAD)))
        processes = await stack.enter_async_context(open_processes(config, is_run=is_run))
        engine = await stack.enter_async_context(open_engines(config, model, text.tokenizer, lease, processes))
        yield LocalModel(model, text, engine, Recorder(engine, text, names=names), lease, template, processes)
