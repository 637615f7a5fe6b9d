"""Numbers of sampled tokens that must be there before advantages are made: others measure them, credit uses them.

Knows: turns, tokens in the order of sampling.  Knows not: models, how a number is measured, tensors.
Invariant: of each turn exactly those tokens are measured that can be trained; a token that is masked has no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ludus.errors import InternalError

Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """Of the tokens of one turn that can be trained, in their order, under the weights that are trained next. A field
    is the name of what an algorithm asks to be measured (`Needs.measured`); None: nothing asked for it."""

    values: Floats | None = None
    """What the critic expects before the token is drawn."""
    sampled_logprobs: Floats | None = None
    """Of the distribution that each was drawn from."""
    reference_logprobs: Floats | None = None
    """Under the weights that training began with."""
    logit_gradients: Floats | None = None
    """Squared length of the gradient of each logprob by the logits: 1 - 2 p + the sum of all squared probabilities."""
    teacher_gaps: Floats | None = None
    """log teacher - log policy, both at temperature 1 (`Needs.teacher`): the teacher measures it, and no trainer."""

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
