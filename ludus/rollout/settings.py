"""Settings of rollouts: how agents run, how many at once, what happens to failed episodes."""

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
    """Discount between a turn's return and the returns of the turns that follow it."""
    export_style: Literal["individual", "concat"] = "individual"
    """individual: one training sequence per turn; concat: one per path. Their gradients are equal."""


class InlineSettings(AgentSettings):
    """On a thread of this process."""

    mode: Literal["inline"] = "inline"


class SubprocSettings(AgentSettings):
    """Each episode in a process of its own, which is killed at its deadline."""

    mode: Literal["subproc"] = "subproc"
    subproc_max_workers: int = pydantic.Field(default=4, ge=1)
    """Number of processes, and so of concurrent episodes."""
    env: tuple[str, ...] = ()
    """Additional environment variables for agents, such as keys of services that they call. Agents always get the
    session's address and key, and what every program needs: PATH, HOME, the locale."""
    python: str | None = None
    """The interpreter of the agents' processes, from an environment of their own: Ludus need not be installed there,
    and its libraries may conflict with Ludus's. None: the interpreter that runs Ludus."""
    workers: int = pydantic.Field(default=0, ge=0)
    """Worker processes of the run in which agents run, placed by its scheduler; each runs `subproc_max_workers`
    episodes at a time. 0: agents run on this machine."""

    def idle(self) -> Iterator[Idle]:
        if self.python is not None and self.workers:
            yield Idle("python", f"workers is {self.workers}: agents play where the scheduler places them")


class OnlineSettings(AgentSettings):
    """Ludus runs no agent: it trains on sessions that external clients open over HTTP."""

    mode: Literal["online"] = "online"
    host: str = "127.0.0.1"
    """The address that the gateway listens on."""
    port: int = pydantic.Field(default=8000, ge=0, le=65535)
    """Its port; 0 is any free one."""
    tls_cert: Path | None = None
    """The gateway uses HTTPS with this certificate, a PEM file. None: plain HTTP."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""


AGENTS = {"inline": InlineSettings, "subproc": SubprocSettings, "online": OnlineSettings}


class ReplaySettings(Settings):
    """Good groups of earlier batches are trained on again, in places of later batches."""

    share: float = pydantic.Field(gt=0, lt=1)
    """Maximum share of a batch's groups that are replayed; rounded down."""
    size: int = pydantic.Field(default=256, ge=1)
    """How many groups are kept, the newest ones."""
    max_age: int | None = pydantic.Field(default=None, ge=1)
    """Maximum age of a replayed group, in versions between the weights that sampled its first token and the trained
    ones. None: any."""
    min_best: float | None = None
    """A group is kept only if its best reward is at least this. None: any."""
    min_mean: float | None = None
    """A group is kept only if the mean of its rewards is at least this. None: any."""

    def num_places(self, batch_size: int) -> int:
        """Groups of a batch that are replayed once enough are kept."""
        return math.floor(self.share * batch_size + 1e-9)  # 0.29 of 100 is 29


class RolloutSettings(Settings):
    """How many episodes run at once, how far they may run ahead, and their limits."""

    max_concurrent_rollouts: int = pydantic.Field(default=64, ge=1)
    """Maximum number of concurrent episodes."""
    max_head_offpolicyness: int = pydantic.Field(default=0, ge=0)
    """How far rollouts run ahead: a group starts if its batch trains weights at most this many versions newer. 0 is
    the synchronous schedule."""
    stale_tokens: Literal["mask", "train"] = "mask"
    """What happens to tokens sampled by weights more than `max_head_offpolicyness` versions older than those they
    train. mask: they are not trained, and a batch waits for groups whose first tokens the next batch could not train.
    train: as in AReaL, that number only limits how far rollouts run ahead; tokens of any age are trained."""
    oversample: float = pydantic.Field(default=0.0, ge=0.0, le=4.0)
    """Additional groups to run, as a share of a batch. The first complete groups make the batch, so it does not wait
    for the slowest."""
    oversample_rest: Literal["keep", "cancel"] | None = None
    """What happens to the additional groups when a batch is full. keep: they continue, also under the new weights, and
    are in a later batch. cancel: those that have run longest end, and are not trained on. None: keep, if tokens of
    the previous weights may be trained."""
    agent: Annotated[AgentSettings, OneOf(AGENTS, "inline")] = InlineSettings()
    actors: dict[str, ActorSettings] = pydantic.Field(default_factory=dict)
    """Models with a role in episodes that are never trained, by name, such as `user_simulator`."""
    replay: ReplaySettings | None = None
    """None: no group is trained on twice."""
    recall: bool = True
    """After a kill, unfinished episodes get the answers that were already sampled, as long as their agents send the
    same requests; from the first difference on, answers are sampled. False: all are sampled anew."""
    retries: int = pydantic.Field(default=1, ge=0)
    """How often a member of a group that failed or timed out is repeated."""
    min_members: int = pydantic.Field(default=2, ge=1)
    """A group with fewer survivors is rejected."""
    episode_timeout_s: float | None = pydantic.Field(default=600.0, gt=0)
    """Time limit of an episode; None: no limit. In mode online: how long a session may be idle."""
    max_turns: int | None = pydantic.Field(default=None, ge=1)
    """Maximum model calls of one episode. None: no limit."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Maximum tokens sampled in one episode. None: no limit."""
    pinned: tuple[Pinnable, ...] = (
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    )
    """Sampling fields that keep the run's values during training, whatever an agent asks for."""
    max_consecutive_failures: int = pydantic.Field(default=16, ge=1)
    """This many failed episodes in a row stop the run."""

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
        """Worker processes of the run in which agents run."""
        return self.agent.workers if isinstance(self.agent, SubprocSettings) else 0

    @property
    def keeps_rest(self) -> bool:
        """Whether additional groups continue when a batch is full."""
        return self.oversample_rest != "cancel" and self.max_token_age != 0

    @property
    def max_token_age(self) -> int | None:
        """Maximum age of a trained token, in versions before the weights it trains. None: any."""
        return self.max_head_offpolicyness if self.stale_tokens == "mask" else None

    def num_extra_groups(self, batch_size: int) -> int:
        """Groups that run in addition to those that batches need."""
        return math.ceil(self.oversample * batch_size)


class CurriculumSettings(Settings):
    """Rows whose last groups were solved by all episodes or by none teach nothing, and are skipped for a while."""

    solved: float | None = None
    """A row is solved if the mean success of one of its groups is at least this. None: no row is skipped as solved."""
    hopeless: float | None = None
    """A row is hopeless if that mean is at most this. None: no row is skipped as hopeless."""
    metric: str = "success"
    """The metric of episodes that measures success; `reward` is the agent's reward."""
    last_groups: int = pydantic.Field(default=1, ge=1)
    """How many consecutive groups of a row must have been solved, or hopeless."""
    skip_epochs: int = pydantic.Field(default=1, ge=1)
    """How many epochs a row is skipped. Then it is played again, and skipped again if the result is the same."""

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
    """Sampling parameters where the agent's request does not set them; the names are those of other frameworks."""

    n_samples: int = pydantic.Field(default=8, ge=1)
    """Episodes per row: the size of a group."""
    max_new_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Maximum tokens of one answer. None: as many as fit into the context."""
    temperature: float = pydantic.Field(default=1.0, ge=0.0)
    top_p: float = pydantic.Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = pydantic.Field(default=0, ge=0)
    min_p: float = pydantic.Field(default=0.0, ge=0.0, le=1.0)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def sampling(self, seed: int | None = None) -> Sampling:
        """These settings as the engine's vocabulary."""
        return Sampling(seed=seed, **self.model_dump(exclude={"n_samples"}))
