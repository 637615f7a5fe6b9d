"""Settings of rollouts: how agents run, how many at once, what becomes of failed episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

import pydantic

from ludus.agents.settings import ActorSettings
from ludus.errors import ConfigError
from ludus.settings import Idle, OneOf, Settings, Tagged
from ludus.types import Sampling

Pinnable = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
]
"""Sampling fields that decide what a token is drawn from. No grammar: an agent that asks for one relies on it."""


class AgentSettings(Tagged):
    """How the agent is run, and how its turns become training data."""

    tag = "mode"
    mode: str
    turn_discount: float = pydantic.Field(default=1.0, ge=0.0, le=1.0)
    """What a turn's return keeps of the returns of the turns after it."""
    export_style: Literal["individual", "concat"] = "individual"
    """individual: a training sequence a turn; concat: one a path. Their gradients are equal."""


class InlineSettings(AgentSettings):
    """On a thread of this process."""

    mode: Literal["inline"] = "inline"


class SubprocSettings(AgentSettings):
    """Each episode in a process of its own, which is killed at its deadline."""

    mode: Literal["subproc"] = "subproc"
    subproc_max_workers: int = pydantic.Field(default=4, ge=1)
    """Processes, and so episodes that play at the same time."""
    env: tuple[str, ...] = ()
    """Variables of the environment that agents are given, such as keys of services that they call. Without them they
    have the session's address and key, and what every program needs: PATH, HOME, the locale."""
    python: str | None = None
    """The interpreter of the agents' processes, of an environment of their own: nothing of Ludus need be installed
    there, and no library has to go with Ludus's. None: the one that runs Ludus."""
    workers: int = pydantic.Field(default=0, ge=0)
    """Processes of the run, where its scheduler places them, in which agents play; each plays `subproc_max_workers`
    episodes at the same time. 0: agents play on this machine."""

    def idle(self) -> Iterator[Idle]:
        if self.python is not None and self.workers:
            yield Idle("python", f"workers is {self.workers}: agents play where the scheduler places them")


class OnlineSettings(AgentSettings):
    """Nowhere: sessions that others play over HTTP are trained on."""

    mode: Literal["online"] = "online"
    host: str = "127.0.0.1"
    """The address that the gateway listens on."""
    port: int = pydantic.Field(default=8000, ge=0, le=65535)
    """Its port; 0 is any free one."""
    tls_cert: Path | None = None
    """The gateway speaks HTTPS with this certificate, a PEM file. None: plain HTTP."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""


AGENTS = {"inline": InlineSettings, "subproc": SubprocSettings, "online": OnlineSettings}


class ReplaySettings(Settings):
    """Good groups of earlier batches are trained on again, in places of later batches."""

    share: float = pydantic.Field(gt=0, lt=1)
    """Of a batch's groups so many at most are replayed; rounded down."""
    size: int = pydantic.Field(default=256, ge=1)
    """Groups that are kept, the newest."""
    max_age: int | None = pydantic.Field(default=None, ge=1)
    """Versions by which the weights that train may be newer than those that sampled a group's first token. None: any
    number."""
    min_best: float | None = None
    """A group is kept if its best reward is at least this. None: whatever it is."""
    min_mean: float | None = None
    """And if the mean of its rewards is at least this. None: whatever it is."""

    def num_places(self, batch_size: int) -> int:
        """Groups of a batch that are replayed once enough are kept."""
        return math.floor(self.share * batch_size + 1e-9)  # 0.29 of 100 is 29


class RolloutSettings(Settings):
    """How many episodes play at once, how far they may run ahead, and their limits."""

    max_concurrent_rollouts: int = pydantic.Field(default=64, ge=1)
    """Episodes that play at the same time."""
    max_head_offpolicyness: int = pydantic.Field(default=0, ge=0)
    """How far rollouts run ahead: a group starts where its batch trains weights at most so many versions newer. 0 is
    the synchronous schedule."""
    stale_tokens: Literal["mask", "train"] = "mask"
    """What becomes of tokens sampled by weights more than `max_head_offpolicyness` versions older than those they
    train. mask: they are not trained, and a batch waits for the groups whose first tokens the next could not train.
    train: as in AReaL, that number bounds how far rollouts run ahead and nothing else; tokens of any age are
    trained."""
    oversample: float = pydantic.Field(default=0.0, ge=0.0, le=4.0)
    """So large a share of a batch is played on top; the first groups that are complete make the batch, so that it does
    not wait for the slowest."""
    oversample_rest: Literal["keep", "cancel"] | None = None
    """What becomes of the groups on top when a batch is full. keep: they play on, under the new weights too, and are in
    a later batch. cancel: those that are played the longest end, and are not trained on. None: keep where
    tokens of the weights before may be trained."""
    agent: Annotated[AgentSettings, OneOf(AGENTS, "inline")] = InlineSettings()
    actors: dict[str, ActorSettings] = pydantic.Field(default_factory=dict)
    """By name the models that play a part in episodes and are never trained, such as `user_simulator`."""
    replay: ReplaySettings | None = None
    """None: no group is trained on twice."""
    recall: bool = True
    """Episodes that a killed run had begun are given the answers again that were sampled for them, as long as their
    agents ask for the same; the first difference is sampled. False: all of it is sampled anew."""
    retries: int = pydantic.Field(default=1, ge=0)
    """How often a member of a group that failed or timed out is played again."""
    min_members: int = pydantic.Field(default=2, ge=1)
    """A group with fewer survivors is rejected."""
    episode_timeout_s: float | None = pydantic.Field(default=600.0, gt=0)
    """None: an episode may take for ever. In mode online: how long a session may be idle."""
    max_turns: int | None = pydantic.Field(default=None, ge=1)
    """Model calls of one episode. None: no limit."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Tokens sampled in one episode. None: no limit."""
    pinned: tuple[Pinnable, ...] = (
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    )
    """Sampling fields that keep the run's values while training, whatever an agent asks for."""
    max_consecutive_failures: int = pydantic.Field(default=16, ge=1)
    """So many failed episodes in a row stop the run."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.oversample > 0 and self.oversample_rest == "keep" and self.max_token_age == 0:
            raise ConfigError(
                "oversample_rest='keep' goes on with tokens of the weights before, and max_head_offpolicyness=0 trains "
                "none of those; set max_head_offpolicyness to 1 or more, or oversample_rest to 'cancel'"
            )
        return self

    def idle(self) -> Iterator[Idle]:
        if self.oversample == 0 and self.is_set("oversample_rest"):
            yield Idle("oversample_rest", "oversample is 0")

    @property
    def num_workers(self) -> int:
        """Processes of the run in which agents play."""
        return self.agent.workers if isinstance(self.agent, SubprocSettings) else 0

    @property
    def keeps_rest(self) -> bool:
        """Groups on top play on when a batch is full."""
        return self.oversample_rest != "cancel" and self.max_token_age != 0

    @property
    def max_token_age(self) -> int | None:
        """Versions by which a trained token may be older than the weights it trains. None: any number."""
        return self.max_head_offpolicyness if self.stale_tokens == "mask" else None

    def num_extra_groups(self, batch_size: int) -> int:
        """Groups that play on top of those that batches need."""
        return math.ceil(self.oversample * batch_size)


class CurriculumSettings(Settings):
    """Rows that teach nothing for now, as their last groups were solved by all or by none, are skipped for a while."""

    solved: float | None = None
    """A row is solved if the mean success of a group of it is at least this. None: no row is skipped for that."""
    hopeless: float | None = None
    """A row is hopeless if that is at most this. None: no row is skipped for that."""
    metric: str = "success"
    """The metric of episodes that is their success; `reward` is what their agent returned."""
    last_groups: int = pydantic.Field(default=1, ge=1)
    """So many groups of a row in a row must have been solved, or hopeless."""
    skip_epochs: int = pydantic.Field(default=1, ge=1)
    """Epochs that it is skipped in; then it is played again, and skipped again if that came to the same."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.solved is not None and self.hopeless is not None and self.hopeless >= self.solved:
            raise ConfigError(f"hopeless={self.hopeless} must be less than solved={self.solved}")
        return self

    def idle(self) -> Iterator[Idle]:
        if not self.is_on:
            keys = (name for name in ("metric", "last_groups", "skip_epochs") if self.is_set(name))
            yield from (Idle(name, "neither `solved` nor `hopeless` says what is skipped") for name in keys)

    @property
    def is_on(self) -> bool:
        return self.solved is not None or self.hopeless is not None


class GenerationSettings(Settings):
    """How answers are sampled where the agent's request does not say; keys as other frameworks name them."""

    n_samples: int = pydantic.Field(default=8, ge=1)
    """Episodes of one row: the size of a group."""
    max_new_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Of one answer. None: as many as fit into the context."""
    temperature: float = pydantic.Field(default=1.0, ge=0.0)
    top_p: float = pydantic.Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = pydantic.Field(default=0, ge=0)
    min_p: float = pydantic.Field(default=0.0, ge=0.0, le=1.0)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def sampling(self, seed: int | None = None) -> Sampling:
        """These settings as the engine's vocabulary."""
        return Sampling(seed=seed, **self.model_dump(exclude={"n_samples"}))
