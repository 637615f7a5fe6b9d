"""The settings of the algorithm: a preset by name, and keys that differ from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

import pydantic

from ludus.algorithms.base import Rule
from ludus.algorithms.corrections import (
    BypassSettings,
    DivergenceSettings,
    MaskSettings,
    NoneSettings,
    TruncateSettings,
    parts_of,
    weighs,
)
from ludus.algorithms.distillation import DistillationSettings
from ludus.algorithms.estimators.group import GroupSettings
from ludus.algorithms.levels import Level
from ludus.algorithms.losses.clip import ClipSettings
from ludus.algorithms.metrics import KlEstimator
from ludus.algorithms.normalisers import ConstantSettings, TokenSettings
from ludus.algorithms.overlong import OverlongSettings
from ludus.algorithms.proximal import Proximal
from ludus.algorithms.reward_kl import RewardKlSettings
from ludus.algorithms.table import CORRECTIONS, ESTIMATORS, LOSSES, NORMALISERS, PRESETS
from ludus.errors import ConfigError
from ludus.settings import Choice, Idle, OneOf, Settings, did_you_mean

logger = logging.getLogger(__name__)


def _settings(rules: Mapping[str, Rule]) -> dict[str, type[Choice]]:
    return {kind: rule.settings for kind, rule in rules.items()}


class KlSettings(Settings):
    """A term in the loss for the KL divergence from the initial weights."""

    beta: float = pydantic.Field(gt=0)
    """Its weight."""
    estimator: KlEstimator = "k3"
    """How it is estimated from each token."""
    weighted: bool = False
    """Multiply the estimate by the ratio to the sampler, which makes it unbiased for tokens of another policy."""


class EntropySettings(Settings):
    """An entropy bonus in the loss."""

    coef: float = pydantic.Field(default=0.0, ge=0)
    """Its coefficient; with a target, the initial one."""
    target: float | None = pydantic.Field(default=None, gt=0)
    """After each batch the coefficient is raised if the entropy was at most this, else lowered; while the entropy is
    above it there is no bonus. None: the coefficient is constant."""
    delta: float = pydantic.Field(default=0.005, gt=0)
    """How much the coefficient changes after a batch."""
    min: float = pydantic.Field(default=0.0, ge=0)
    """Bounds of the coefficient: this and `max`."""
    max: float = pydantic.Field(default=1.0, gt=0)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.coef == 0 and self.target is None:
            raise ConfigError("entropy.coef must be above 0, or entropy.target given, towards which it moves")
        if self.target is not None and not self.min <= self.coef <= self.max:
            raise ConfigError(f"entropy.coef={self.coef:g} must lie between min={self.min:g} and max={self.max:g}")
        return self

    def idle(self) -> Iterator[Idle]:
        if self.target is None:
            yield from (Idle(key, "entropy.target is not set") for key in ("delta", "min", "max") if self.is_set(key))


class OffPolicyMaskSettings(Settings):
    """Leaves out sequences with negative advantage that the policy has already made unlikely."""

    threshold: float = pydantic.Field(gt=0)
    """They are left out if the mean of log mu - log pi over the sequence is above this."""
    level: Level = "episode"
    """What a sequence is."""


class DemonstrationSettings(Settings):
    """How demonstrations, which join the groups of their rows, are trained on."""

    reward: float = 1.0
    """Of demonstrations that do not bring their own."""
    gamma: float = pydantic.Field(default=0.1, gt=0)
    """The loss of a token is -A p / (p + gamma), p its probability: with a small gamma unlikely tokens count more."""


class AlgorithmSettings(Settings):
    """How rewards become advantages, and advantages the loss. The defaults are GRPO with token-mean."""

    has_presets = True
    name: str = "grpo"
    """The preset that the other keys start from."""
    advantage: Annotated[Choice, OneOf(_settings(ESTIMATORS), "group", own="own")] = GroupSettings()
    loss: Annotated[Choice, OneOf(_settings(LOSSES), "clip", own="own")] = ClipSettings()
    distillation: DistillationSettings | None = None
    """Add a teacher's advantages. None: there is no teacher."""
    correction: Annotated[Choice, OneOf(_settings(CORRECTIONS), "truncate", several="several")] = TruncateSettings()
    """How the difference between the policy that sampled and the one that is trained is corrected; a list: by several
    at once."""
    proximal: Proximal = "recompute"
    """Where the proximal policy's logprobs come from. recompute: a forward pass before the first optimizer step on a
    batch; reuse: the training pass; interpolate: between sampler and current policy, by the token's age."""
    kl: KlSettings | None = None
    """None: no such term, and the initial weights are not kept."""
    reward_kl: RewardKlSettings | None = None
    """None: no such penalty, and the initial weights are not kept."""
    entropy: EntropySettings | None = None
    """None: no such term."""
    top_entropy: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Train only this share of a minibatch's tokens, those of the highest entropy. None: all of them."""
    off_policy_mask: OffPolicyMaskSettings | None = None
    """None: nothing is left out."""
    second_moment: float | None = pydantic.Field(default=None, gt=0)
    """M2PO: of a minibatch's tokens that have moved in the direction of their advantage, those with the largest
    (log prox - log mu)^2 are left out until the mean over the others is below this. None: nothing is left out."""
    demonstrations: DemonstrationSettings = DemonstrationSettings()
    normaliser: Annotated[Choice, OneOf(_settings(NORMALISERS), "token")] = TokenSettings()
    """What the loss is averaged over."""
    minibatches: int = pydantic.Field(default=1, ge=1)
    """Optimizer steps on one batch, each on whole groups of its own; never more than there are groups."""
    epochs: int = pydantic.Field(default=1, ge=1)
    """How many times all minibatches of a batch are trained on, in the same order each time."""
    max_sequence_tokens: int | None = pydantic.Field(default=None, ge=2)
    """Tokens beyond this position in a conversation, prompts counted, are not trained. None: all are."""
    overlong: OverlongSettings | None = None
    """A penalty for answers near the maximum length. None: no penalty."""
    mask_truncated_completions: bool = False
    """Do not train answers that were cut off at the maximum length."""
    dynamic_sampling: bool = False
    """DAPO: replace a group from which nothing can be learned (all rewards equal) by a group of another row."""
    dynamic_sampling_metric: str | None = None
    """What must differ in a group instead: a metric of its episodes by name, or `reward`, the rewards less the length
    penalty. None: the rewards as the task gave them, by what the estimator looks at."""

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _start_from_preset(cls, data: Any, handler: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        name = data.get("name", "grpo")
        if name not in PRESETS:
            hint = did_you_mean(str(name), PRESETS, ";")
            raise ConfigError(f"name={name!r} is not available{hint} there are {', '.join(PRESETS)}")
        preset = PRESETS[name]
        given = {key: _laid_over(preset.get(key), value, _default_kind(key)) for key, value in data.items()}
        if preset and all(key in data and not _holds(given[key], value) for key, value in preset.items()):
            logger.warning("algorithm.name=%s has no effect: %s are given otherwise", name, ", ".join(preset))
        made = handler({**preset, **given})
        # keys of the preset do not count as set by the user: written without defaults, the settings only name it
        made.__pydantic_fields_set__.intersection_update(data)
        return made

    @pydantic.model_validator(mode="after")
    def _check_pairs(self) -> Self:
        needs = LOSSES[self.loss.kind].needs(self.loss)
        if (needs.pairs or needs.sides) and self.distillation is not None:
            raise ConfigError(
                f"loss {self.loss.kind!r} reads which side a sequence is of from the sign of its advantage, and "
                "algorithm.distillation gives each token its own; leave out one of the two"
            )
        if (needs.pairs or needs.sides) and self.advantage.kind not in ("best_worst", "own"):
            said = (
                f"compares two members of a group, and advantage {self.advantage.kind!r} says not which"
                if needs.pairs
                else f"takes each episode as a whole for good or bad, and advantage {self.advantage.kind!r} may give "
                "its turns both signs"
            )
            name = self.loss.kind if self.loss.kind in PRESETS else "kto"
            raise ConfigError(
                f"loss {self.loss.kind!r} {said}; set advantage: best_worst, or take name: {name}, which has all of it"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_left_out(self) -> Self:
        """If several tokens share one loss, none of them can be left out: the others would move it."""
        unit, masks = LOSSES[self.loss.kind].unit(self.loss), ("top_entropy", "second_moment", "off_policy_mask")
        if unit == "token":
            return self
        said = [f"algorithm.{name}" for name in masks if getattr(self, name) is not None]
        whole = {"turn": ("turn", "episode"), "episode": ("episode",)}.get(unit, ())
        for each in parts_of(self.correction):
            if isinstance(each, MaskSettings | DivergenceSettings) and each.level not in whole:
                said.append(f"algorithm.correction={each.kind} with level={each.level}")
        if said:
            at_level = f"; algorithm.correction=mask with level={whole[0]} leaves out whole ones" if whole else ""
            raise ConfigError(
                f"{' and '.join(said)}: algorithm.loss={self.loss.kind} is one loss for a whole {unit}, and what is "
                "left out of it would move with the rest; remove it, or choose a loss of each token, such as clip (its "
                f"level may be episode){at_level}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_taken_off(self) -> Self:
        """A penalty on the reward needs an advantage that is computed from the reward, and allows it to be negative."""
        if self.reward_kl is not None:
            said, instead = "reward_kl", "set algorithm.kl.beta, which puts the divergence to the loss"
        elif self.overlong is not None:
            said, instead = "overlong", "set algorithm.mask_truncated_completions, which leaves out what was cut off"
        else:
            return self
        if self.advantage.kind in ("none", "gdpo"):
            raise ConfigError(
                f"{said} is taken off the reward, and advantage {self.advantage.kind!r} is not made of it; {instead}, "
                "or choose another advantage"
            )
        if isinstance(self.advantage, GroupSettings) and self.advantage.scale == "mean":
            raise ConfigError(
                f"{said} is taken off the reward, which then may be negative, and advantage.scale 'mean' divides by a "
                f"mean of rewards that are not; {instead}, or choose another scale"
            )
        return self

    @property
    def off_policy_obstacle(self) -> str | None:
        """Why groups that another policy sampled, such as replayed ones, cannot be trained on. None: they can."""
        parts, loss, advantage = parts_of(self.correction), self.loss.kind, self.advantage.kind
        is_bypassed = any(isinstance(each, BypassSettings) for each in parts)
        if not is_bypassed and not any(map(weighs, parts)):
            of_mask = " with weighs=false" if any(isinstance(each, MaskSettings) for each in parts) else ""
            said = "none" if isinstance(self.correction, NoneSettings) else f"{self.correction.kind}{of_mask}"
            return (
                f"algorithm.correction={said} counts them as the policy's own; set algorithm.correction to truncate, "
                "mask or bypass"
            )
        if is_bypassed and loss in ("policy_gradient", "cross_entropy"):
            return (
                f"algorithm.loss={loss} with correction=bypass has no ratio that would weigh them; set "
                "algorithm.correction to truncate or mask"
            )
        if ESTIMATORS[advantage].remembers:
            return (
                f"algorithm.advantage={advantage} would count their rewards twice in what it remembers of earlier "
                "batches; choose another advantage"
            )
        return None

    def of_length(self, max_new_tokens: int | None) -> Self:
        """These settings with the maximum length of answers filled in where the normaliser or `overlong` need it.

        Raises ConfigError if it is needed and given nowhere.
        """
        update: dict[str, Any] = {}
        if isinstance(self.normaliser, ConstantSettings) and self.normaliser.tokens is None:
            if max_new_tokens is None:
                raise ConfigError("normaliser.tokens must be given, or gconfig.max_new_tokens: the length to divide by")
            update["normaliser"] = ConstantSettings(tokens=max_new_tokens)
        if self.overlong is not None:
            update["overlong"] = self.overlong.of_length(max_new_tokens)
        return self.model_copy(update=update) if update else self

    @property
    def has_proximal(self) -> bool:
        """Whether ratios are taken to the weights before the batch, rather than to the weights that sampled."""
        parts = ((CORRECTIONS, self.correction), (LOSSES, self.loss))
        return any(rules[choice.kind].needs(choice).proximal for rules, choice in parts)

    @property
    def is_ratio_one(self) -> bool:
        """Whether the ratio to the old policy is always 1."""
        is_one_step = self.minibatches == self.epochs == 1
        return self.has_proximal and {"recompute": is_one_step, "reuse": True, "interpolate": False}[self.proximal]

    def idle(self) -> Iterator[Idle]:
        if self.dynamic_sampling_metric is not None and not self.dynamic_sampling:
            yield Idle("dynamic_sampling_metric", "dynamic_sampling is off")
        elif self.dynamic_sampling_metric == "reward" and self.overlong is None:
            yield Idle("dynamic_sampling_metric", "without algorithm.overlong nothing is taken off the rewards")
        if not self.has_proximal and self.is_set("proximal"):
            yield Idle("proximal", f"with correction {self.correction.kind} ratios are to the policy that sampled")
        if self.is_ratio_one and "loss" in self.model_fields_set:
            is_reused = self.proximal == "reuse"
            what = "proximal=reuse" if is_reused else "minibatches=1 and epochs=1"
            several = f"{'proximal recompute and ' if is_reused else ''}minibatches or epochs above 1"
            acts = f"{several}, or with correction bypass"
            why = f"with {what} the ratio to the weights that the batch began with is 1; it acts with {acts}"
            idle = (name for name in LOSSES[self.loss.kind].ratio_keys if self.loss.is_set(name))
            yield from (Idle(f"loss.{name}", why) for name in idle)


def _default_kind(key: str) -> str | None:
    field = AlgorithmSettings.model_fields.get(key)
    return None if field is None else next((each.default for each in field.metadata if isinstance(each, OneOf)), None)


def _laid_over(preset: Any, given: Any, default_kind: str | None) -> Any:
    """The given value, completed with the preset's keys below it if both are of the same kind."""
    if default_kind is None or preset is None or given is None:
        return given
    below, above = _as_mapping(preset), _as_mapping(given)
    kind = below.get("kind", default_kind)
    return {**below, **above} if above.get("kind", kind) == kind else given


def _holds(given: Any, preset: Any) -> bool:
    above = _as_mapping(given)
    return all(above.get(key) == value for key, value in _as_mapping(preset).items())


def _as_mapping(choice: Any) -> Mapping[str, Any]:
    if isinstance(choice, Choice):
        return choice.model_dump(exclude_unset=True)
    return choice if isinstance(choice, Mapping) else {"kind": choice}


SUPERVISED = AlgorithmSettings(name="supervised")
"""Cross-entropy, one step for a batch."""
