"""Packed samples and tokenizers, where `realhf.api.core.data_api` has them."""

from ludus.compat.realhf.prompts import RL_TASKS
from ludus.compat.realhf.sample import MicroBatchSpec, SequenceSample, SequenceSplitSpec
from ludus.compat.tokenizer import load_hf_tokenizer

__all__ = ["MicroBatchSpec", "RL_TASKS", "SequenceSample", "SequenceSplitSpec", "load_hf_tokenizer"]
