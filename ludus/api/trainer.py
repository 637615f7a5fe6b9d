"""`ludus.Trainer`: a configuration, rows and an agent in, a trained model and its run folder out.

Knows: which part is built from which settings.  Knows not: how any part works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import yaml

from ludus.algorithms.resolve import algorithm_of
from ludus.api.accept import AcceptFn, accept_filter
from ludus.api.agent import NOT_GIVEN, GivenAgent, choose_players
from ludus.api.cards.start import planned
from ludus.api.live import watch_script
from ludus.api.local import settled
from ludus.api.plan import train_plan, with_decay_end
from ludus.api.play import open_runner, outside_run
from ludus.api.run import open_run
from ludus.api.sources import train_sources, valid_sources
from ludus.config import Config, check_training
from ludus.episodes.archive import RunArchive
from ludus.episodes.recall import Recall
from ludus.errors import ConfigError, UserError
from ludus.gateway.app import check_admin_key
from ludus.http.tls import Tls
from ludus.loop.batch import make_group_filter, token_bounds
from ludus.loop.checkpoint import Checkpoint, RunProgress, whole_checkpoint
from ludus.loop.demonstrations import Demonstrations
from ludus.loop.evaluate import EvalPlan, Evaluation, evaluate
from ludus.loop.fingerprint import Fingerprint
from ludus.loop.interrupt import Interrupts
from ludus.loop.observer import Observer, Observers, OnStep, RunSummary
from ludus.loop.train import INTERRUPT, RunComponents, TrainPlan, train
from ludus.processes.blocking import run_blocking
from ludus.rollout.mixture import Source, derive_seed
from ludus.rollout.online import OnGateway, OnlineRollouts
from ludus.rollout.runner import Players
from ludus.rollout.settings import OnlineSettings
from ludus.runs.folder import read_config
from ludus.runs.store import RunStore
from ludus.settings import leaves
from ludus.text.chat import ChatText

# A resumed run plays the same stream of groups only if these keys are unchanged.
_STREAM_KEYS = (("seed",), ("train_dataset", "batch_size"), ("train_dataset", "shuffle"), ("gconfig", "n_samples"))

_Players = Players | Callable[..., OnlineRollouts]
"""The agents that play, or what makes groups of sessions that arrive over HTTP."""


class Trainer:
    """Trains the model inside an agent. `train` and `evaluate` may be called in scripts and in notebooks."""

    def __init__(self, config: Config, train_dataset: object = None, valid_dataset: object = None) -> None:
        """Datasets: rows as mappings, in any form that `load_rows` reads. None: the configuration names them."""
        self.config = config
        self._train_dataset = train_dataset
        self._valid_dataset = valid_dataset

    def __repr__(self) -> str:
        return f"Trainer(run={str(self.config.folder)!r}, model={self.config.model.path!r})"

    def train(
        self,
        workflow: object = None,
        workflow_kwargs: Mapping[str, Any] | None = None,
        resume: bool = False,
        observer: Observer | None = None,
        *,
        eval_workflow: object = None,
        eval_workflow_kwargs: Mapping[str, Any] | None = None,
        should_accept_fn: AcceptFn | str | None = None,
        on_gateway: OnGateway | None = None,
        admin_key: str | None = None,
        callback: Observer | OnStep | None = None,
        progress: bool | None = None,
    ) -> RunSummary:
        """Train until one of the configured limits is reached, and save the model in the run's folder.

        workflow: the agent: a class, an instance, an async function or an import string. None: the configuration's.
        resume: go on from the run's latest checkpoint, with the same stream of groups.
        eval_workflow: the agent that plays evaluations. None: the configuration's, else `workflow`.
        should_accept_fn: given a complete group (`GroupView`), whether it is trained on. None: the configuration's,
        else every group is.
        on_gateway, admin_key: for `rollout.agent.mode: online`. on_gateway is called with the gateway's address and
        admin key; admin_key: None: one is made.
        callback: called with number and metrics of each step, or an `Observer`; an exception in it stops the run.
        observer: as such a callback, but it replaces the progress that is shown.
        progress: show it: True, always (if need be on stderr); False, never; None, if stdout is a terminal or a
        notebook and there is no `observer`.
        Raises UserError if the configuration, the data or the agent cannot work; the message says what would.
        """
        self.config = check_training(self.config)
        algorithm_of(self.config.algorithm).load()
        settings = self.config.rollout.agent
        accept = accept_filter(should_accept_fn or self.config.should_accept_fn)
        players: _Players
        sources: Sequence[Source] = ()
        evaluation = self._eval_plan()
        if isinstance(settings, OnlineSettings):
            self._check_online(settings, eval_workflow if workflow is None else workflow, on_gateway, admin_key)
            players = partial(OnlineRollouts, admin_key=admin_key, on_gateway=on_gateway)
        else:
            sources = train_sources(self.config.train_dataset, self._train_dataset)
            given = GivenAgent(workflow, workflow_kwargs), GivenAgent(eval_workflow, eval_workflow_kwargs)
            held_out = () if evaluation is None else evaluation.sources
            players = choose_players(self.config, *given, train=sources, held_out=held_out)
            if "" in players.evaluation and not self.config.eval.is_asked:
                raise ConfigError(
                    "eval_workflow cannot act: no evaluation is asked for; set eval.before, eval.after or "
                    "eval.every_steps"
                )
        resume = resume and RunStore.has_begun(self.config.folder)
        found = self._check_run(resume, sources)
        self.config = planned(settled(self.config, goes_on=resume), goes_on=resume)
        num_rows = sum(len(source.rows) for source in sources)
        plan = train_plan(self.config, sources, num_rows=num_rows, evaluation=evaluation, accept=accept)
        is_shown = progress if observer is None else bool(progress)
        watching = [each for each in (observer, callback) if each is not None]
        with Interrupts() as interrupts, watch_script(self.config.name, is_shown) as shown:
            told = Observers(*watching, shown)
            return run_blocking(self._train(players, plan, resume, found, told, interrupts))

    def evaluate(self, workflow: object = None, workflow_kwargs: Mapping[str, Any] | None = None) -> Evaluation:
        """Play the held-out rows with the configured model, and return the episodes and their means."""
        plan = self._eval_plan(is_asked=True)
        assert plan is not None, "an evaluation that is asked for has rows"
        given = GivenAgent(workflow, workflow_kwargs)
        agents = (given, NOT_GIVEN) if workflow is None else (NOT_GIVEN, given)
        players = choose_players(self.config, *agents, held_out=plan.sources)
        how = self.config, players, self.config.eval_generation
        return run_blocking(outside_run(*how, lambda runner: evaluate(runner.run, plan, step=0)))

    async def _train(
        self,
        players: _Players,
        plan: TrainPlan,
        resume: bool,
        found: Checkpoint | None,
        observer: Observer,
        interrupts: Interrupts,
    ) -> RunSummary:
        config = with_decay_end(self.config, plan)
        observer.on_phase(f"loading {config.model.path}")
        async with AsyncExitStack() as stack:
            opening = open_run(config, found, goes_on=resume, text=self.config.to_yaml(), sources=plan.sources)
            run = await stack.enter_async_context(opening)
            local, learner, store = run.local, run.learner, run.store
            start = replace(run.start, data=_fingerprints(plan.sources))
            local.processes.announce()
            play, arrivals = None, None
            if isinstance(players, Players):
                recall = partial(_recall, store, start) if resume and config.rollout.recall else lambda _: None
                archive = RunArchive(store)
                opening_runner = open_runner(local, config, players, archive, config.eval_generation, recall)
                play = (await stack.enter_async_context(opening_runner)).run
            else:
                bounds, accepted = token_bounds(plan.rules.algorithm), make_group_filter(plan.rules)
                given = {"version": start.step, "group_filter": accepted, "bounds": bounds}
                arrivals = players(local.recorder, store, config.rollout, config.gconfig, **given)
            parts = RunComponents(
                engine=local.engine,
                learner=learner,
                teacher=run.teacher,
                play=play,
                store=store,
                observer=observer,
                interrupts=interrupts,
                save_model=partial(local.save, learner),
                demonstrate=self._demonstrations(local.text, plan.sources),
                arrivals=arrivals,
            )
            local.processes.on_end(interrupts.request)
            try:
                summary = await train(parts, plan, start)
            except Exception:
                local.processes.check()  # if a process was lost, that explains more than the error it caused
                raise
            if summary.stopped_by == INTERRUPT:
                local.processes.check()
            return summary

    def _check_online(
        self, agent: OnlineSettings, workflow: object, on_gateway: OnGateway | None, admin_key: str | None
    ) -> None:
        """Raises UserError if what was passed cannot act where sessions arrive over HTTP."""
        if workflow is not None or self._train_dataset is not None or self._valid_dataset is not None:
            what = "a workflow" if workflow is not None else "a dataset"
            raise ConfigError(
                f"{what} cannot act with rollout.agent.mode=online: sessions arrive over HTTP; leave it out"
            )
        if on_gateway is None and admin_key is None:
            raise ConfigError(
                "nobody would know the admin key, so no session could be opened; pass admin_key=… or on_gateway=…"
            )
        check_admin_key(agent.host, admin_key)
        Tls.of(agent.tls_cert, agent.tls_key)  # a wrong certificate is reported now, not once the model is loaded

    def _demonstrations(self, text: ChatText, sources: Sequence[Source]) -> Demonstrations | None:
        config, column = self.config, self.config.train_dataset.demonstrations
        if column is None:
            return None
        if not any(row.get(column) for source in sources for row in source.rows):
            columns = ", ".join(map(repr, sources[0].rows[0]))
            raise ConfigError(f"train_dataset.demonstrations={column!r}: no row has any; the columns are {columns}")
        return Demonstrations(text, column, config.algorithm.demonstrations.reward, config.gconfig.temperature)

    def _eval_plan(self, *, is_asked: bool = False) -> EvalPlan | None:
        config = self.config
        if not (config.eval.is_asked or is_asked):
            return None
        sources = valid_sources(config.valid_dataset, self._valid_dataset)
        if not sources:
            key = next((name for name in ("every_steps", "before", "after") if config.eval.is_set(name)), None)
            asked = f"eval.{key} cannot act without held-out rows" if key is not None else "no held-out rows were given"
            raise ConfigError(f"{asked}: set valid_dataset.path, or pass valid_dataset=… in Python")
        return EvalPlan(
            sources=sources,
            n_samples=config.eval_generation.n_samples,
            seed=derive_seed(config.seed, "evaluation"),
            max_concurrent=config.rollout.max_concurrent_rollouts,
        )

    def _check_run(self, resume: bool, sources: Sequence[Source]) -> Checkpoint | None:
        """The checkpoint to resume from. None: the run begins anew.

        Writes nothing. Raises UserError if the run cannot begin, or cannot be resumed with this configuration or these
        rows.
        """
        config = self.config
        if not resume:
            RunStore.check_free(config.run_root, config.name)
            return None
        RunStore.check_there(config.folder)
        now = _stream_values(yaml.safe_load(config.to_yaml()))
        try:
            before = _stream_values(read_config(config.folder))
        except UserError:  # reported when the run is opened; the rows are compared all the same
            before = now
        for key, new in now.items():
            if before[key] != new:
                raise ConfigError(
                    f"{key}={new!r} cannot be resumed with: the run {config.name!r} was begun with {before[key]!r}, "
                    "and its data would go on elsewhere; keep the value, or begin a new run (name=...)"
                )
        found = whole_checkpoint(config.folder / "checkpoints")
        now_played = _fingerprints(sources)
        for name, data in (found.progress.data if found is not None else {}).items():
            difference = data.difference(now_played[name])
            if difference is not None:
                of_name = f" (train_dataset.mix.{name})" if name else ""
                raise UserError(
                    f"the run {config.name!r} cannot go on with other training rows than it was begun with{of_name}: "
                    f"{difference}. Restore them, or begin a new run (--new, or name=...)"
                )
        return found


def _stream_values(values: Mapping[str, Any]) -> dict[str, object]:
    """The keys, with their values, that decide which groups a run of this configuration plays."""
    known, of_mix = dict(leaves(values)), ("train_dataset", "mix")
    weights = [f"{path[2]}: {value}" for path, value in known.items() if path[:2] == of_mix and path[3:] == ("weight",)]
    return {".".join(path): known.get(path) for path in _STREAM_KEYS} | {"train_dataset.mix": weights}


def _fingerprints(sources: Sequence[Source]) -> dict[str, Fingerprint]:
    return {source.name: Fingerprint.of(source.rows) for source in sources}


def _recall(store: RunStore, start: RunProgress, episode_id: str) -> Recall:
    """The answers that any attempt at this episode was given after the checkpoint's ledger was closed.

    Left out are answers of later weights, which were lost with the steps that made them, and answers in attempts that
    failed or were lost, which the ledger may have counted already.
    """
    recall = Recall(newest=start.step)
    for episode in store.attempts(re.sub(r"-r\d+$", "", episode_id), after=start.num_accounted):
        is_given = episode.outcome.kind in ("ok", "truncated", "cancelled")
        (recall.add if is_given else recall.drop)(episode.session)
    return recall
