"""Fixtures that several folders of tests share: a small tokenizer, tiny random models, the embedded model.

Everything is built once a session, offline. torch is imported inside the fixtures that need it, so that the tests of
the base install run without it.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# A job in the background of a script is born with Ctrl-C ignored, one that outlives its terminal with the hang-up; the
# tests send both, and what they start must hear them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
hypothesis.settings.register_profile("here", deadline=None)  # on a busy machine any example may take its time
hypothesis.settings.load_profile("here")
hypothesis.settings.register_profile("fuzz", max_examples=1000, deadline=None)

# Where several processes share the files, whoever gets one of these last would work on it alone at the end.
LONGEST = (
    "tests/checks/verify/test_chaos.py",
    "tests/cluster/test_recovery.py",
    "tests/cluster/test_ranks.py",
    "tests/cluster/test_ray.py",
    "tests/api/test_misbehaving.py",
    "tests/checks/verify/test_ranks.py",
    "tests/trainer/test_sharded.py",
    "tests/checks/verify/test_resume.py",
    "tests/checks/verify/test_replay.py",
    "tests/checks/verify/test_signals.py",
    "tests/cluster/serve/test_two_machines.py",
    "tests/cluster/test_workers.py",
    "tests/runs/trackers/in_browser.py",
    "tests/runs/trackers/test_mlflow.py",
    "tests/api/test_interrupts.py",
    "tests/cluster/remote/over_ssh.py",
    "tests/cluster/remote/over_ray.py",
    "tests/docs/over_ssh.py",
    "tests/rollout/test_subproc.py",
)


# With --core: tests of what stands below these folders of the package, which then cannot be imported.
ABOVE_THE_CORE = ("ludus.compat", "ludus.cluster", "ludus.checks", "ludus.cli")
CORE_TESTS = {
    *(
        "agents",
        "algorithms",
        "api",
        "engines",
        "episodes",
        "gateway",
        "http",
        "kernels",
        "loop",
        "models",
        "processes",
    ),
    *("rewards", "rollout", "runs", "text", "trainer", "test_config.py", "test_settings.py"),
}


class NotTheCore(MetaPathFinder):
    """Nothing above the core is there."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        del path, target
        if ".".join(fullname.split(".")[:2]) in ABOVE_THE_CORE:
            raise ModuleNotFoundError(f"{fullname} stands above the core, and --core has none of it", name=fullname)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="only tests of the core, without what stands above it")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--core"):
        sys.meta_path.insert(0, NotTheCore())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    here = Path(__file__).parent
    if not config.getoption("--core") or here not in collection_path.parents:
        return None
    return True if collection_path.relative_to(here).parts[0] not in CORE_TESTS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others as they come."""
    places = {path: place for place, path in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.fixture
def sandbox() -> None:
    """Where this system has none, whoever needs it says so; a test of what it does is skipped with these words."""
    from ludus.errors import UserError
    from ludus.processes.walls import walls

    try:
        walls()
    except UserError as error:
        pytest.skip(str(error))


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n"
    "' + message['content'] + '<|im_end|>' + '\n"
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n"
    "' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 400
CORPUS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "system\nuser\nassistant\ntool\n",
    "I think of a number from 1 to 20. Reply with one number only. I answer higher or lower.",
    "Guess. It is higher than 7. It is lower than 13. Reply with one number.",
    '{"name": "add", "arguments": {"a": 1, "b": 2}} The answer is 42, and the weather is fine today.',
    "the quick brown fox jumps over the lazy dog while seven wizards quietly brew a potion",
)
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
# The window is short and the caps are low so that they act on the few tokens of a test.
_SLIDING: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama_4_key_heads": ("LlamaConfig", {"num_key_value_heads": 4}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": False}),
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": True}),
    "gemma": ("GemmaConfig", {}),
    "gemma2": (
        "Gemma2Config",
        {**_SLIDING, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": ("Gemma3TextConfig", {**_SLIDING, "query_pre_attn_scalar": 16}),
    "gpt_oss": (
        "GptOssConfig",
        {**_SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": {"rope_theta": 1e4}},
    ),
    "minimax_m2": ("MiniMaxM2Config", {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False}),
    "mistral": ("MistralConfig", {"sliding_window": 8, "tie_word_embeddings": False}),
}


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 8, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    generation_config = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps(generation_config, indent=2))
    (folder / "chat_template.jinja").write_text(CHATML)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of at most 400 tokens with ChatML's special tokens (ids 0, 1, 2) and SmolLM2's template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    _write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the folder of a tiny random model by architecture: llama, qwen2, qwen3, gemma, gemma2, gemma3, gpt_oss,
    minimax_m2, mistral."""
    built: dict[str, Path] = {}

    def build(architecture: str) -> Path:
        if architecture not in built:
            built[architecture] = _write_model(architecture, tmp_path_factory.mktemp(architecture))
        return built[architecture]

    return build


def _write_model(architecture: str, folder: Path) -> Path:
    import torch
    import transformers

    _write_tokenizer(folder)
    vocab_size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    config_name, values = _ARCHITECTURES[architecture]
    config = getattr(transformers, config_name)(vocab_size=vocab_size, **{**_COMMON, **values})
    with torch.random.fork_rng():
        torch.manual_seed(20)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generation_text = (folder / "generation_config.json").read_text()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(generation_text)
    return folder


@pytest.fixture(scope="session")
def tiny_model_folder(tiny_models: Callable[[str], Path]) -> Path:
    """A random Llama in fp32: 2 layers, width 64, 4 heads over 2 key heads of 16, context 512, the small tokenizer."""
    return tiny_models("llama")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded default model in the user's cache; `make test` fetches it before the tests run."""
    from ludus.models.resolve import resolve_model

    return resolve_model("smollm2-135m")


@pytest.fixture
def plain_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """flex_attention computes its scores directly; uncompiled it would be traced anew for every shape, and warn."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
