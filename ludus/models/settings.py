"""Which model is trained, and how much of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ludus.settings import Settings


class LoraSettings(Settings):
    """Train low-rank adapters instead of all weights."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    target_modules: tuple[str, ...] | None = None
    """Names of linear layers, such as `q_proj`. None: every one within the model's layers but routers, whatever its
    family calls them; in mixtures of experts those of attention."""
    target_parameters: tuple[str, ...] = ()
    """Names of weights that belong to no linear layer: those of fused experts, such as `mlp.experts.down_proj`."""


class ModelSettings(Settings):
    """The model under training."""

    path: str = "smollm2-135m"
    """Name of an embedded model, a local folder, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`."""
    served_names: tuple[str, ...] = ()
    """Names of other models, or patterns of them such as `gpt-*`, in whose place this one answers: what agents that are
    not to be changed call theirs. Besides these `default`, the run's name, its steps and its base are answered, and any
    other name is refused."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Of the weights that sample and run forward; the optimizer always keeps its own copy in float32. auto: bfloat16 on
    a card, and on a processor unless float32 is faster there, which is measured once; a run records what it was.
    float16 is for cards: it has three more bits than bfloat16, and its losses are scaled."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Of the weights, the pages and the training step. auto: the CUDA card if there is one, else cpu."""
    lora: LoraSettings | None = None
    """None: every weight is trained."""
    chat_template: str | None = None
    """None: the model's own. Else the path of a .jinja file, or the name of a template that Ludus ships, or of another
    that the model brings along, such as `tool_use`."""
    tool_parser: str = "auto"
    context_length: int | None = Field(default=None, ge=1)
    """None: what the model's configuration says."""
