"""Numbers of sampled tokens that are measured before advantages are computed from them.

Knows: turns, tokens in the order of sampling.  Knows not: models, how a number is measured, tensors.
Invariant: exactly the trainable tokens of each turn are measured; a masked token has no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ludus.errors import InternalError

Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """Measured numbers of one turn's trainable tokens, in their order, under the weights that are trained next.

    `Needs.measured` asks for them by the name of the field. None: not asked for.
    """

    values: Floats | None = None
    """The critic's value before the token."""
    sampled_logprobs: Floats | None = None
    """Of the distribution that the token was drawn from."""
    reference_logprobs: Floats | None = None
    """Under the initial weights of the training."""
    logit_gradients: Floats | None = None
    """Squared length of the gradient of the logprob by the logits: 1 - 2 p + the sum of all squared probabilities."""
    teacher_gaps: Floats | None = None
    """log teacher - log policy, both at temperature 1 (`Needs.teacher`); measured by the teacher, not the trainer."""

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns().items()}
        if len(set(lengths.values())) > 1:
            raise InternalError(f"all that is measured of a turn is of the same tokens, got {lengths}")

    @property
    def num_tokens(self) -> int:
        return max((len(column) for column in self.columns().values()), default=0)

    def columns(self) -> dict[str, Floats]:
        """What was measured, by name."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in every.items() if column is not None}


Measured = Mapping[str, TokenNumbers]
"""By turn id. A turn of which no token can be trained is left out."""
