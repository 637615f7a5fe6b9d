"""Collects bundles of answers, and packs them into the sample that an agent returns.

Knows: the keys of trajectories.  Knows not: where rewards come from.
Invariant: every answer is one sequence, with its own mask, reward and versions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ludus.compat.realhf.agent import Queue
from ludus.compat.realhf.generation import BundledGenerationOutputs
from ludus.compat.realhf.sample import SequenceSample, import_torch


class TrajectoryBuilder:
    """Collects the answers of one episode."""

    def __init__(self, prompt: SequenceSample) -> None:
        self.qid: str = prompt.ids[0]
        self._prompt = prompt
        self._born_at = time.time()
        self._bundles: list[BundledGenerationOutputs] = []

    async def ask(
        self, obs_queue: Queue, act_queue: Queue, token_ids: Sequence[int], gconfig: Any
    ) -> BundledGenerationOutputs:
        """Ask the model; returns the bundle of answers, which is added to the trajectory."""
        await obs_queue.put((self.qid, token_ids, gconfig))
        self.add(await act_queue.get())
        return self._bundles[-1]

    def add(self, bundle: BundledGenerationOutputs) -> None:
        self._bundles.append(bundle)

    def build(self, rewards: Sequence[float], metadata: Mapping[str, Sequence[Any]] | None = None) -> SequenceSample:
        """The sample. rewards: one for each answer, in order."""
        torch = import_torch()
        bundles = self._bundles
        seqs = [seq for bundle in bundles for seq in bundle.seqs]
        if len(rewards) != len(seqs):
            raise ValueError(f"there are {len(seqs)} answers and {len(rewards)} rewards; give one for each")
        masks = [[1] * bundle.prompt_len + [0] * num for bundle in bundles for num in bundle.output_lens]
        lists: dict[str, tuple[Any, list[list[Any]]]] = {
            "packed_input_ids": (torch.long, seqs),
            "packed_logprobs": (torch.float32, [row for bundle in bundles for row in bundle.logprobs]),
            "prompt_mask": (torch.bool, masks),
            "seq_no_eos_mask": (torch.bool, [[flag] for bundle in bundles for flag in bundle.no_eos]),
            "version_start": (torch.int, [[version] for bundle in bundles for version in bundle.version_start]),
            "version_end": (torch.int, [[version] for bundle in bundles for version in bundle.version_end]),
            "rewards": (torch.float32, [[reward] for reward in rewards]),
            "packed_prompts": (torch.long, [values for _, values in self._prompt.sequences("packed_prompts")]),
            "birth_time": (torch.long, [[int(self._born_at * 1000)]]),
        }
        sample = SequenceSample(
            keys=set(lists),
            trailing_shapes=dict.fromkeys(lists, ()),
            dtypes={key: dtype for key, (dtype, _) in lists.items()},
            ids=[self.qid],
            seqlens={key: [[len(row) for row in rows]] for key, (_, rows) in lists.items()},
            data={key: torch.tensor([*chain(*rows)], dtype=dtype) for key, (dtype, rows) in lists.items()},
            metadata={name: list(values) for name, values in (metadata or {}).items()},
        )
        if "task_ids" in self._prompt.keys:
            sample.update_(self._prompt.select(["task_ids"]))
        return sample
