"""Who scores the tokens that were sampled, and what it is told that the agent was not.

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
"""The prompt of a teacher that was shown an answer. Source: SDFT (arXiv 2601.19897) sec. 3, shortened."""


class HintSettings(Settings):
    """What the teacher is shown besides: a column of the row, put into one message of its prompt."""

    column: str = pydantic.Field(min_length=1)
    """Of the row. Rows in which it is empty, or not there, are scored without a hint."""
    into: Literal["system", "user"] = "user"
    """Which message, the first of its role, becomes `template`; a system message that is not there is put in front."""
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
    """What every kind of teacher has."""


class NoTeacherSettings(TeacherSettings):
    """Nobody scores."""

    kind: Literal["none"] = "none"


class ScoringSettings(TeacherSettings):
    """A teacher that is there."""

    hint: HintSettings | None = None
    """None: it is asked with the agent's own prompts."""


class ModelTeacherSettings(ScoringSettings):
    """A model in the run's own process, loaded once."""

    kind: Literal["model"] = "model"
    path: str
    """As `model.path`; or the folder of a run, whose model it is: the one that it ended with, else its latest
    checkpoint's."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """As `model.dtype`."""
    device: str = pydantic.Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    row_tokens: int = pydantic.Field(default=4096, ge=1)
    """Tokens that go through it at a time."""


class ServerTeacherSettings(ScoringSettings):
    """A model that runs already behind URLs."""

    kind: Literal["server"] = "server"
    engine: Literal["vllm", "sglang", "server"] = "vllm"
    """What serves it: vLLM, SGLang, or `ludus engine serve`."""
    urls: tuple[str, ...] = pydantic.Field(min_length=1)
    """Which all serve the same model; paths are shared out over them."""
    api_key: str | None = None


class PolicyTeacherSettings(ScoringSettings):
    """The model under training itself: a self-distillation where it is shown a hint."""

    kind: Literal["policy"] = "policy"
    weights: Literal["now", "first"] = "now"
    """Those that are trained, as they sample; or those that training began with, loaded a second time."""

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
