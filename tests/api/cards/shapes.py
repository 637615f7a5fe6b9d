"""Configurations of models that everybody knows, as their config.json has them."""

from ludus.api.cards.memory import Job
from ludus.api.cards.shape import ModelShape

ALL_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def qwen3(layers, width, inner, heads, *, is_tied):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": is_tied,
    }


CONFIGS = {
    "0.6b": qwen3(28, 1024, 3072, 16, is_tied=True),
    "1.7b": qwen3(28, 2048, 6144, 16, is_tied=True),
    "4b": qwen3(36, 2560, 9728, 32, is_tied=True),
    "8b": qwen3(36, 4096, 12_288, 32, is_tied=False),
    "14b": qwen3(40, 5120, 17_408, 40, is_tied=False),
    "32b": qwen3(64, 5120, 25_600, 64, is_tied=False),
    "70b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
    },
}


def job(name, *, lora=False, **changes):
    """What trains the model of that size in bf16; adapters of rank 16 on all modules."""
    how = {
        "has_critic": False,
        "has_reference": False,
        "has_several_steps": False,
        "max_running": 256,
        "max_batch_tokens": 2048,
        **changes,
    }
    return Job(ModelShape.of(CONFIGS[name]), 2, (16, ALL_MODULES) if lora else None, **how)
