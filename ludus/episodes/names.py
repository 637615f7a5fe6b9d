"""Which model answers a request that names one: the rule, for every way in.

Knows: names.  Knows not: sessions, weights, HTTP.

    default, NAME          the weights that a session samples with; while a run trains, the newest
    NAME@12, default@12    those after step 12, as they were saved
    BASE, NAME@0           those before the first step; BASE is the name by which the model was loaded
    a served name          the session's own too: what agents call the model that is trained in its place
    any other              refused, with the names that there are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ludus.errors import AgentError

DEFAULT_MODEL = "default"
"""What a session's own model can always be called."""
_MOST_DIGITS = 18  # of a step; Python refuses to read numbers of thousands
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class ModelNames:
    """What requests may call the model that a session samples with."""

    name: str = DEFAULT_MODEL
    """What its answers are said to come from."""
    others: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    """Names of other models in whose place it answers, or patterns of them such as `gpt-*`."""

    @property
    def own(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.name, DEFAULT_MODEL, *self.others)))

    def step_of(self, asked: str) -> int | None:
        """Of NAME@STEP. None: it names no step of this model."""
        own, mark, step = asked.rpartition("@")
        is_step = mark and own in self.own and step.isdecimal() and len(step) <= _MOST_DIGITS
        return int(step) if is_step else None

    def serves(self, asked: str) -> bool:
        """It answers in the place of a model of this name."""
        return self.step_of(asked) is None and any(fnmatchcase(asked, pattern) for pattern in self.served)

    def listed(self, others: Sequence[str] = ()) -> tuple[str, ...]:
        """Names of all that answers. others: of weights beside these."""
        plain = (each for each in self.served if not _WILD.intersection(each))
        return tuple(dict.fromkeys((*self.own, *plain, *others)))

    def unknown(self, asked: str, known: Sequence[str], *, why: str | None = None) -> AgentError:
        """The error for a name that nothing answers to. known: those that something does."""
        if why is None and self.step_of(asked) is not None:
            why = "the newest weights alone are served here"
        elif why is None:
            why = (
                "no model here is called so (model.served_names says in whose place the trained one answers), and "
                "another model is asked by its own client"
            )
        message = f"The model {asked!r:.200} cannot answer: {why}; there is {', '.join(known)}."
        return AgentError(message, status=404, code="model_not_found", param="model")


UNNAMED = ModelNames()
