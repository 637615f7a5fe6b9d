"""Loss scaling: a factor on the loss that keeps its gradients in the range of float16.

Knows: which gradients were finite.  Knows not: losses, gradients.

The smallest number of float16 is 6e-8, and the gradient of one token among thousands is often smaller. bfloat16 and
float32 reach down to 1e-38 and need no factor: theirs is always 1.
Source: Micikevicius et al., "Mixed Precision Training" (arXiv 1710.03740) sec. 3.2.
"""

from __future__ import annotations

# As in torch.amp.GradScaler: begins large, and falls until gradients are finite.
_START, _GROWTH, _BACKOFF, _PATIENCE = 65536.0, 2.0, 0.5, 2000


class LossScale:
    """A factor that halves when a gradient is not finite, and doubles after 2,000 finite ones in a row."""

    def __init__(self, *, is_needed: bool) -> None:
        self.is_needed = is_needed
        self.factor = _START if is_needed else 1.0
        self.num_finite = 0
        """Steps since the factor changed."""

    def __repr__(self) -> str:
        return f"LossScale({self.factor:g} after {self.num_finite} finite steps)"

    def update(self, *, is_finite: bool) -> None:
        """Adjust the factor after a step. is_finite: whether its gradient was."""
        if not self.is_needed:
            return
        self.num_finite = self.num_finite + 1 if is_finite else 0
        if not is_finite:
            self.factor *= _BACKOFF
        elif self.num_finite == _PATIENCE:
            self.factor, self.num_finite = self.factor * _GROWTH, 0

    def state(self) -> tuple[float, int]:
        return self.factor, self.num_finite

    def load_state(self, state: tuple[float, int] | None) -> None:
        """Load what `state` returned, if a factor is needed here. None: none was saved, so the factor begins anew."""
        if self.is_needed and state is not None:
            self.factor, self.num_finite = float(state[0]), int(state[1])
