"""Tiny models twice: as Ludus loads them, and as plain transformers does, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from ludus.engines.local.core import EngineCore
from ludus.engines.local.kernels.select import choose_kernel
from ludus.engines.local.paged import PagedCache
from ludus.engines.local.pages import PagePool
from ludus.engines.local.settings import InferenceSettings
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import ModelSettings
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled


class Naive:
    """transformers alone: one full forward pass a token."""

    def __init__(self, folder: Path) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        self._model.eval()

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits after every token, shape (S, V)."""
        return self._model(torch.tensor([token_ids]), use_cache=False).logits[0].float()

    def greedy(self, prompt_ids: tuple[int, ...], num_tokens: int) -> list[int]:
        token_ids = list(prompt_ids)
        for _ in range(num_tokens):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(prompt_ids) :]

    def logprobs(
        self, prompt_ids: tuple[int, ...], answer_ids: tuple[int, ...], temperature: float = 1.0
    ) -> torch.Tensor:
        """Logprob of every token of the answer."""
        logits = self.logits([*prompt_ids, *answer_ids])[len(prompt_ids) - 1 : -1] / temperature
        return logits.log_softmax(-1).gather(1, torch.tensor(answer_ids)[:, None])[:, 0]


@pytest.fixture(scope="session")
def naive(tiny_models: Callable[[str], Path]) -> Callable[[str], Naive]:
    """Plain transformers by architecture."""
    built: dict[str, Naive] = {}
    return lambda name: built.setdefault(name, Naive(tiny_models(name))) if name not in built else built[name]


@pytest.fixture(scope="session")
def loaded(tiny_models: Callable[[str], Path]) -> Callable[..., LoadedModel]:
    """Ludus's model by architecture and type."""
    built: dict[tuple[str, str], LoadedModel] = {}

    def load(name: str, dtype: str = "float32") -> LoadedModel:
        if (name, dtype) not in built:
            built[name, dtype] = load_model(ModelSettings(path=str(tiny_models(name)), dtype=dtype))
        return built[name, dtype]

    return load


@pytest.fixture
def make_core(loaded: Callable[..., LoadedModel], tokenizer_folder: Path) -> Callable[..., EngineCore]:
    """A fresh core on a tiny model; `num_pages` narrows its memory."""

    def make(name: str = "llama", dtype: str = "float32", num_pages: int = 256, **settings: object) -> EngineCore:
        model = loaded(name, dtype)
        config = model.config
        page_bytes = PagedCache.page_bytes(config, model.head_weight.dtype)
        chosen = InferenceSettings(kv_bytes=num_pages * page_bytes, **settings)
        kernel = choose_kernel(chosen.kernels, model.head_weight, head_dim=config.head_dim)
        return EngineCore(model, Tokenizer.load(tokenizer_folder), chosen, kernel)

    return make


@pytest.fixture
def run_calls() -> Callable[..., dict[str, Sampled]]:
    """Adds calls, steps until all are answered, returns the answers by call id."""

    def run(core: EngineCore, calls: list[Call]) -> dict[str, Sampled]:
        for call in calls:
            core.check(call)
            core.add(call, 0 if call.sampling.seed is None else call.sampling.seed)
        answers: dict[str, Sampled] = {}
        while not core.is_idle:
            for progress in core.step():
                if progress.answer is not None:
                    answers[progress.call_id] = progress.answer
        return answers

    return run


def check_pages(pool: PagePool) -> None:
    """Raises AssertionError if an invariant of `pages.py` is broken."""
    held, entries = [page for page in range(pool.num_pages) if pool._refs[page]], pool._entries
    assert sorted([*pool._free, *pool._evictable, *held]) == list(range(pool.num_pages)), "a page is in no state or two"
    order = {page: at for at, page in enumerate(pool._evictable)}
    for page, entry in entries.items():
        assert page not in pool._free, f"free page {page} can be found"
        if entry.parent >= 0:
            assert len(entries[entry.parent].token_ids) == pool.page_tokens, "a partial page has a child"
            assert pool._refs[entry.parent] > 0 or order[entry.parent] > order[page], "eviction would cut a chain"
        assert len(entry.token_ids) == pool.page_tokens or pool._refs[page] <= 1, "a partial page is shared"
