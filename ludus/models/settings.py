"""Which model is trained, and how much of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ludus.settings import Settings


class LoraSettings(Settings):
    """Train low-rank adapters instead of all weights."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""
    target_modules: tuple[str, ...] | None = None
    """Names of linear layers, such as `q_proj`. None: all within the model's layers except routers; in mixtures of
    experts, those of attention."""
    target_parameters: tuple[str, ...] = ()
    """Names of weights that belong to no linear layer: those of fused experts, such as `mlp.experts.down_proj`."""


class ModelSettings(Settings):
    """The model under training."""

    path: str = "smollm2-135m"
    """Name of an embedded model, a local folder, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`."""
    served_names: tuple[str, ...] = ()
    """Names of other models, or patterns such as `gpt-*`, for which this model answers: for agents that name another
    model and should not be changed. Also accepted are `default`, the run's name, its steps and its base; any other
    name is rejected."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of the weights for sampling and the forward pass; the optimizer always keeps its own copy in float32. auto:
    bfloat16 on a GPU, float16 on one before Ampere; on a CPU bfloat16, unless float32 is faster there (measured once).
    A run records the result. float16 is for GPUs: it has three more mantissa bits than bfloat16, and its losses are
    scaled."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """Device of the weights, the KV pages and the training step. auto: the CUDA GPU if there is one, else cpu. mps: an
    Apple GPU."""
    lora: LoraSettings | None = None
    """None: every weight is trained."""
    quantization: Literal["none", "nf4"] = "none"
    """nf4: the weights under adapters are kept in 4 bits (QLoRA): a quarter of the memory, and slower products. Needs
    bitsandbytes."""
    chat_template: str | None = None
    """Path of a .jinja file, the name of a template that Ludus ships or that the model brings along, such as
    `tool_use`, or the text of a template. None: the model's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template for every conversation, such as `enable_thinking: false`. A request's own
    arguments override them."""
    tool_parser: str = "auto"
    context_length: int | None = Field(default=None, ge=1)
    """None: as in the model's configuration."""

    @property
    def chat(self) -> dict[str, Any]:
        """The settings of the model's chat text, as arguments of `ChatText.load`."""
        return {
            "chat_template": self.chat_template,
            "chat_template_kwargs": self.chat_template_kwargs,
            "tool_parser": self.tool_parser,
        }
