"""What a loss is multiplied by, so that its gradients lie where float16 has numbers.

Knows: which gradients were finite.  Knows not: losses, gradients.

The smallest number of float16 is 6e-8, and the gradient of one token among thousands is often smaller. bfloat16 and
float32 have numbers down to 1e-38 and need no factor: theirs is 1 and stays.
Source: Micikevicius et al., "Mixed Precision Training" (arXiv 1710.03740) sec. 3.2.
"""

from __future__ import annotations

# As torch.amp.GradScaler begins, grows and falls: large enough for what is small, and found out by falling.
_START, _GROWTH, _BACKOFF, _PATIENCE = 65536.0, 2.0, 0.5, 2000


class LossScale:
    """A factor that halves when a gradient was not finite, and doubles when 2,000 in a row were."""

    def __init__(self, *, is_needed: bool) -> None:
        self.is_needed = is_needed
        self.factor = _START if is_needed else 1.0
        self.num_finite = 0
        """Steps since the factor changed."""

    def __repr__(self) -> str:
        return f"LossScale({self.factor:g} after {self.num_finite} finite steps)"

    def update(self, *, is_finite: bool) -> None:
        """After a step: whether its gradient was finite."""
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
        """Take over what `state` returned; where no factor is needed there is none to take over. None: none was kept,
        and the factor stays as it begins."""
        if self.is_needed and state is not None:
            self.factor, self.num_finite = float(state[0]), int(state[1])
