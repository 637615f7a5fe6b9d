"""The names by which a request chooses the model that answers, for every protocol.

Knows: names.  Knows not: sessions, weights, HTTP.

    default, NAME          the session's own weights; while a run trains, the newest
    NAME@12, default@12    the saved weights after step 12
    BASE, NAME@0           the weights before the first step; BASE is the path or id that the model was loaded from
    a served name          the session's own weights too: a name, such as gpt-4o, that agents already use
    any other              refused; the error lists the names that there are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ludus.errors import AgentError

DEFAULT_MODEL = "default"
"""A name by which a session's own model can always be called."""
_MOST_DIGITS = 18  # of a step; Python refuses to read numbers of thousands
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The names of the model that a session samples with."""

    name: str = DEFAULT_MODEL
    """The model's name in answers."""
    others: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    """Names of other models, or patterns such as `gpt-*`, to which it answers in their place."""

    @property
    def own(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.name, DEFAULT_MODEL, *self.others)))

    def step_of(self, asked: str) -> int | None:
        """The step in a name NAME@STEP. None: the name is no step of this model."""
        own, mark, step = asked.rpartition("@")
        is_step = mark and own in self.own and step.isdecimal() and len(step) <= _MOST_DIGITS
        return int(step) if is_step else None

    def serves(self, asked: str) -> bool:
        """Whether it answers in place of a model with this name."""
        return self.step_of(asked) is None and any(fnmatchcase(asked, pattern) for pattern in self.served)

    def listed(self, others: Sequence[str] = ()) -> tuple[str, ...]:
        """All names that are answered. others: names of further weights."""
        plain = (each for each in self.served if not _WILD.intersection(each))
        return tuple(dict.fromkeys((*self.own, *plain, *others)))

    def unknown(self, asked: str, known: Sequence[str], *, why: str | None = None) -> AgentError:
        """The error for an unknown name. known: the names that are answered."""
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
