"""Sampling parameters for agents that use token ids, with the names that the families share.

Knows: sampling parameters by name.  Knows not: who asks, who samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from ludus.errors import UserError
from ludus.types import Sampling


@dataclass(kw_only=True)
class Hyperparameters:
    """Sampling parameters. None means the value of the run's `gconfig`."""

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    greedy: bool = False
    top_p: float | None = None
    top_k: int | None = None
    temperature: float | None = None
    stop_token_ids: list[int] = field(default_factory=list)

    def new(self, **kwargs: Any) -> Self:
        """A copy with these fields replaced."""
        return replace(self, **kwargs)

    @classmethod
    def of(cls, gconfig: Any) -> Self:
        """The parameters in any form: None, a mapping, or an object with fields of these names.

        Raises UserError for an unknown key of a mapping.
        """
        if gconfig is None:
            return cls()
        if isinstance(gconfig, cls):
            return gconfig
        names = [item.name for item in fields(cls)]
        if isinstance(gconfig, Mapping):
            unknown = sorted(set(gconfig) - set(names))
            if unknown:
                raise UserError(f"gconfig has no parameter {unknown[0]!r}; there are {', '.join(names)}")
            return cls(**gconfig)
        given = {name: getattr(gconfig, name) for name in names if hasattr(gconfig, name)}
        if not given:
            raise UserError(f"gconfig is {gconfig!r:.100}, which has none of the parameters {', '.join(names)}")
        return cls(**given)

    def over(self, base: Sampling, **more: Any) -> Sampling:
        """As the engine's type: `base`, overridden by these parameters and by `more`; None leaves a value as it is.

        Raises UserError for parameters that no engine here supports.
        """
        if self.min_new_tokens:
            raise UserError(
                f"gconfig.min_new_tokens={self.min_new_tokens} cannot act: answers end where the model ends them; "
                "set it to 0"
            )
        given: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "temperature": 0.0 if self.greedy else self.temperature,
            "stop_token_ids": tuple(self.stop_token_ids) or None,
            **more,
        }
        return replace(base, **{name: value for name, value in given.items() if value is not None})
