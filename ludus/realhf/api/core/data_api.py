"""Packed samples and tokenizers, where `realhf.api.core.data_api` has them."""

from ludus.agents.queues.prompts import RL_TASKS
from ludus.agents.queues.sample import MicroBatchSpec, SequenceSample, SequenceSplitSpec
from ludus.agents.queues.tokenizer import load_hf_tokenizer

__all__ = ["MicroBatchSpec", "RL_TASKS", "SequenceSample", "SequenceSplitSpec", "load_hf_tokenizer"]
