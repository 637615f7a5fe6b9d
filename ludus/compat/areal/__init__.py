"""The names of `areal`: `from ludus.compat.areal import PPOTrainer` in the place of `from areal import PPOTrainer`."""

from typing import TYPE_CHECKING

from ludus.compat.lazy import lazily

if TYPE_CHECKING:
    from ludus.compat.areal.script import PPOTrainer

__all__ = [
    "PPOTrainer",
]

_NAMES = {
    "PPOTrainer": "ludus.compat.areal.script",
}
__getattr__ = lazily(__name__, _NAMES)
