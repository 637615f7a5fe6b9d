"""Fused parts inside transformers' layers: the same values and gradients as without them, in less memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ludus.models.attention import ATTENTION_NAME, register_attention
from ludus.models.fused_layers import fuse_layers
from ludus.models.tree import TreePlan

FAMILIES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mistral")
# relative to the largest value; of bf16 a few roundings
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def load_plain(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Transformers' own modules with our attention, all weights random: norms and biases begin as constants."""
    register_attention()
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=ATTENTION_NAME)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return module.eval()


def fused_names(module: nn.Module) -> set[str]:
    return {name for name, part in module.named_modules() if "forward" in vars(part)}


def hidden_states(module: Any, num_tokens: int = 21) -> Tensor:
    positions = tuple(range(num_tokens))
    plan = TreePlan(tuple(index - 1 for index in positions), positions)
    ids = torch.arange(num_tokens)[None] * 7 % 300
    output: Tensor = module.base_model(
        input_ids=ids, position_ids=torch.tensor([positions]), use_cache=False, plan=plan
    ).last_hidden_state
    return output


def gradients(module: Any) -> dict[str, Tensor]:
    states = hidden_states(module)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    (states.float() * weights).sum().backward()
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def assert_near(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    off = (got.double() - expected.double()).abs().max() / expected.double().abs().max()
    assert float(off) <= TOLERANCE[dtype]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_of_a_known_family_is_fused(family: str, tiny_models: Callable[[str], Path]) -> None:
    """All norms, projections, MLPs and attentions are proven and replaced; names and values of weights stay."""
    module = load_plain(tiny_models(family))
    before = {name: each.clone() for name, each in module.state_dict().items()}
    fuse_layers(module)
    expected = {
        name
        for name, part in module.named_modules()
        if type(part).__name__.endswith(("RMSNorm", "MLP", "Attention", "Linear"))
    }
    assert fused_names(module) == expected
    after = module.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_those_of_plain_modules(
    family: str, dtype: torch.dtype, tiny_models: Callable[[str], Path]
) -> None:
    """With gradients off and on, and for every parameter's gradient, up to rounding."""
    plain, fast = load_plain(tiny_models(family), dtype), load_plain(tiny_models(family), dtype)
    fuse_layers(fast)
    with torch.no_grad():
        assert_near(hidden_states(fast), hidden_states(plain), dtype)
    expected, got = gradients(plain), gradients(fast)
    assert got.keys() == expected.keys()
    for name, each in expected.items():
        assert_near(got[name], each, dtype)


def test_without_a_compiler_the_same_parts_run_on_torch(
    tiny_models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler on the path: the same parts are replaced, and values and gradients stay."""
    plain, fast = load_plain(tiny_models("qwen3")), load_plain(tiny_models("qwen3"))
    native = load_plain(tiny_models("qwen3"))
    fuse_layers(native)
    monkeypatch.setenv("PATH", str(tmp_path))
    fuse_layers(fast)
    assert fused_names(fast) == fused_names(native)
    expected, got = gradients(plain), gradients(fast)
    for name, each in expected.items():
        assert_near(got[name], each, torch.float32)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers the old way
def test_adapters_learn_and_frozen_weights_get_no_gradient(tiny_models: Callable[[str], Path]) -> None:
    """Projections inside adapters are fused; only the adapters' weights have gradients, equal to peft's own."""

    def adapted() -> Any:
        config = peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"
        )
        module = load_plain(tiny_models("qwen2"))
        peft.get_peft_model(module, config)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "lora_" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        return module.eval()

    plain, fast = adapted(), adapted()
    fuse_layers(fast)
    names = fused_names(fast)
    assert {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"} <= names
    assert "model.layers.1.mlp" in names
    expected, got = gradients(plain), gradients(fast)
    assert got.keys() == expected.keys() and all("lora_" in name for name in got)
    for name, each in expected.items():
        assert_near(got[name], each, torch.float32)


def kept_shapes(call: Callable[[], Tensor], parameters: set[int]) -> list[int]:
    """Numbers of values in the separate memory that autograd keeps for the backward pass, parameters left out."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = call()
    del output
    return sorted(kept.values())


def test_little_is_kept_for_the_backward_pass(tiny_models: Callable[[str], Path]) -> None:
    """A norm keeps its input, an MLP its input and its two projections: nothing else."""
    module = load_plain(tiny_models("llama"))
    fuse_layers(module)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    layer, width, inner = module.base_model.layers[0], 64, 128
    x = torch.randn(1, 10, width, requires_grad=True)
    assert kept_shapes(lambda: layer.input_layernorm(x), parameters) == [10 * width]
    assert kept_shapes(lambda: layer.mlp(x), parameters) == [10 * width, 10 * 2 * inner]


def test_projections_outside_their_layer_give_their_own_part(tiny_models: Callable[[str], Path]) -> None:
    """In any order, again after the weights have changed, with gradients or without: always what the layer says."""
    module = load_plain(tiny_models("qwen2"))
    fuse_layers(module)
    attention = module.base_model.layers[0].self_attn
    x = torch.randn(1, 3, 64)

    def expected(layer: nn.Linear) -> Tensor:
        return nn.functional.linear(x, layer.weight, layer.bias)

    for layer in (attention.v_proj, attention.q_proj, attention.k_proj, attention.k_proj, attention.v_proj):
        torch.testing.assert_close(layer(x), expected(layer))
    with torch.no_grad():
        attention.k_proj(x)
        attention.k_proj.weight.mul_(2)
        attention.q_proj.bias.add_(1)
        torch.testing.assert_close(attention.k_proj(x), expected(attention.k_proj))
        attention.q_proj(x)
    assert attention.v_proj(x).requires_grad


def test_parameters_pointed_elsewhere_are_followed(tiny_models: Callable[[str], Path]) -> None:
    """Weights that somebody else's tensors stand in for are used, and afterwards the fused ones again."""
    module = load_plain(tiny_models("qwen2"))
    fuse_layers(module)
    layer, x = module.base_model.layers[0].self_attn.q_proj, torch.randn(1, 3, 64)
    own, before = layer.weight.data, layer(x)
    layer.weight.data = own * 3
    torch.testing.assert_close(layer(x), nn.functional.linear(x, own * 3, layer.bias))
    layer.weight.data = own
    assert torch.equal(layer(x), before)


def test_no_input_outlives_its_layer(tiny_models: Callable[[str], Path]) -> None:
    """When all three projections have taken their parts, nothing holds on to what they were made of."""
    module = load_plain(tiny_models("llama"))
    fuse_layers(module)
    attention = module.base_model.layers[0].self_attn
    x = torch.randn(1, 3, 64)
    with torch.no_grad():
        outputs = [layer(x) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)]
    gone = weakref.ref(x)
    del x, outputs
    gc.collect()
    assert gone() is None


def test_shared_weights_are_left_alone(tiny_models: Callable[[str], Path]) -> None:
    """Projections whose weight another module has too stay as transformers made them."""
    module = load_plain(tiny_models("llama"))
    first, second = (layer.self_attn for layer in module.base_model.layers)
    second.k_proj.weight = first.k_proj.weight
    fuse_layers(module)
    for attention in (first, second):
        storages = {layer.weight.untyped_storage().data_ptr() for layer in (attention.q_proj, attention.v_proj)}
        assert len(storages) == 2
    assert first.k_proj.weight is second.k_proj.weight


class OddRMSNorm(nn.Module):
    """Scales by the largest value instead of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.abs().amax(-1, keepdim=True) + self.eps)


def test_what_computes_otherwise_stays(tiny_models: Callable[[str], Path]) -> None:
    """A norm of another formula and an MLP that does more are not proven, so they are not replaced."""
    module = load_plain(tiny_models("llama"))
    first, second = module.base_model.layers
    first.input_layernorm = OddRMSNorm()

    class Doubled(type(second.mlp)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    second.mlp.__class__ = Doubled
    fuse_layers(module)
    names = fused_names(module)
    assert "model.layers.0.input_layernorm" not in names and "model.layers.1.input_layernorm" in names
    assert "model.layers.1.mlp" not in names and "model.layers.0.mlp" in names


def test_a_gate_with_a_limit_is_left_as_it_is(tiny_models: Callable[[str], Path]) -> None:
    """Though a limit changes nothing for numbers of usual size."""
    module = load_plain(tiny_models("llama"))
    first = module.base_model.layers[0].mlp

    class Limited(type(first)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=7) * self.up_proj(x).clamp(-7, 7))
            return output

    first.__class__ = Limited
    fuse_layers(module)
    names = fused_names(module)
    assert "model.layers.0.mlp" not in names and "model.layers.1.mlp" in names


def test_rotary_positions_of_another_form_are_left_to_transformers(tiny_models: Callable[[str], Path]) -> None:
    """Several rows at once, or angles of a part of the head, go to transformers' own function."""
    module = load_plain(tiny_models("llama"))
    own = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    fuse_layers(module)
    replaced = module.base_model.layers[0].self_attn.forward.__func__.__globals__["apply_rotary_pos_emb"]
    assert replaced is not own and transformers.models.llama.modeling_llama.apply_rotary_pos_emb is own
    q, k, angles = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 5, 16)
    for got, expected in zip(replaced(q, k, angles, angles), own(q, k, angles, angles), strict=True):
        assert torch.equal(got, expected)
