"""The model that scores sampled tokens, and the hint that it gets in addition to the agent's prompt.

Knows: plain values.  Knows not: models, engines, losses (`algorithm.distillation` says what the scores are for).
"""

from __future__ import annotations

import string
from typing import Literal

import pydantic

from ludus.errors import ConfigError
from ludus.settings import Choice, Settings

HINTED = (
    "{content}\n\nThis is an example for a response to the question:\n{hint}\n\nNow answer with a response of your own."
)
"""The prompt of a teacher that sees an example answer. Source: SDFT (arXiv 2601.19897) sec. 3, shortened."""


class HintSettings(Settings):
    """A hint for the teacher: a column of the row, put into one message of its prompt."""

    column: str = pydantic.Field(min_length=1)
    """Column of the row. Rows in which it is empty or missing are scored without a hint."""
    into: Literal["system", "user"] = "user"
    """The first message of this role is replaced by `template`; a missing system message is put in front."""
    template: str = HINTED
    """`{content}` stands for the message's own text, `{hint}` for the column's."""

    @pydantic.field_validator("template")
    @classmethod
    def _check(cls, template: str) -> str:
        try:
            fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        except ValueError as error:
            raise ConfigError(f"template={template!r} is no format: {error}; write {{{{ for a brace") from None
        if "hint" not in fields or fields - {"hint", "content"}:
            raise ConfigError(f"template={template!r} must have {{hint}}, may have {{content}}, and nothing else")
        return template


class TeacherSettings(Choice):
    """Settings of every kind of teacher."""


class NoTeacherSettings(TeacherSettings):
    """No teacher."""

    kind: Literal["none"] = "none"


class ScoringSettings(TeacherSettings):
    """Settings of every teacher that scores."""

    hint: HintSettings | None = None
    """None: it scores with the agent's own prompts."""


class ModelTeacherSettings(ScoringSettings):
    """A model in the run's own process, loaded once."""

    kind: Literal["model"] = "model"
    path: str
    """As `model.path`; or the folder of a run: its final model, or if there is none, that of its latest checkpoint."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """As `model.dtype`."""
    device: str = pydantic.Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    row_tokens: int = pydantic.Field(default=4096, ge=1)
    """Tokens per forward pass."""


class ServerTeacherSettings(ScoringSettings):
    """A model that already runs behind URLs."""

    kind: Literal["server"] = "server"
    engine: Literal["vllm", "sglang", "server"] = "vllm"
    """What serves it: vLLM, SGLang, or `ludus engine serve`."""
    urls: tuple[str, ...] = pydantic.Field(min_length=1)
    """Servers of the same model, which share the work."""
    api_key: str | None = None


class PolicyTeacherSettings(ScoringSettings):
    """The model under training itself: with a hint, this is self-distillation."""

    kind: Literal["policy"] = "policy"
    weights: Literal["now", "first"] = "now"
    """now: the current sampling weights; first: the initial weights, loaded a second time."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> PolicyTeacherSettings:
        if self.weights == "now" and self.hint is None:
            raise ConfigError("a policy without a hint has nothing to teach itself: set hint.column, or weights=first")
        return self


TEACHERS = {
    "none": NoTeacherSettings,
    "model": ModelTeacherSettings,
    "server": ServerTeacherSettings,
    "policy": PolicyTeacherSettings,
}
