"""The base class of agent loops: one object for each trajectory, whose `run` exchanges token ids with the model.

Knows: the constructor's arguments.  Knows not: how loops are run, rewards.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

from ludus.agents.tools.episode_tools import EpisodeTools
from ludus.compat.config import Config, RolloutSettings
from ludus.compat.verl.config_view import DictConfigWrap, ToolListWrap
from ludus.compat.verl.continuous import ContinuousTokenBuilder, MergeResult, refuse_media
from ludus.compat.verl.output import AgentLoopOutput
from ludus.compat.verl.resources import LoopResources
from ludus.compat.verl.server import AsyncLLMServerManager
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.errors import UserError


class AgentLoopBase(ABC):
    """Base of agent loops. Subclass it, name it with `@register`, and implement `run`."""

    agent_kind: ClassVar[str] = "ludus.compat.verl.adapter:from_loop"
    _class_initialized = False

    def __init__(
        self,
        trainer_config: DictConfigWrap,
        server_manager: AsyncLLMServerManager,
        tokenizer: LoopTokenizer,
        processor: Any = None,
        dataset_cls: Any = None,
        data_config: Any = None,
        hf_model_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        """kwargs: the other values in the loop's YAML entry, and the run's `tools`.

        processor, dataset_cls, hf_model_type: always None here; accepted for loops written for verl.
        """
        config = trainer_config.config if isinstance(trainer_config, DictConfigWrap) else trainer_config
        own = {name: value for name, value in kwargs.items() if not isinstance(value, ToolListWrap)}
        self.init_class(config=config, tokenizer=tokenizer, processor=processor, **own)
        self.trainer_config = trainer_config
        self.config = config
        self.rollout_config = config.actor_rollout_ref.rollout
        given = config.data if data_config is None else data_config
        self.data_config = given.config if isinstance(given, DictConfigWrap) else given
        self.apply_chat_template_kwargs = self.data_config.get("apply_chat_template_kwargs") or {}
        self.mm_processor_kwargs = self.data_config.get("mm_processor_kwargs") or {}
        self.dataset_cls = dataset_cls
        self.hf_model_type = hf_model_type
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.continuous_token_builder = ContinuousTokenBuilder(
            tokenizer, chat_template_kwargs=self.apply_chat_template_kwargs
        )
        self.loop = asyncio.get_running_loop()

    @classmethod
    def init_class(cls, config: Any, tokenizer: LoopTokenizer, **kwargs: Any) -> None:
        """Called before each object is made; do shared setup if `cls._class_initialized` is false.

        It is reset to false for each run.
        """
        cls._class_initialized = True

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play a trajectory; returns one sequence, or several if the context was restarted.

        kwargs: the columns of the row, with its messages as `raw_prompt`, and `tools_kwargs` and `interaction_kwargs`
        from its `extra_info`.
        """

    @cached_property
    def system_prompt(self) -> list[int]:
        """Token ids of the template's text before the first message."""
        ids = self.tokenizer.apply_chat_template([{}], **self.apply_chat_template_kwargs)
        assert not isinstance(ids, str), "ids were asked for"
        return ids

    async def process_multi_modal_info(self, messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Images, videos and sounds of the messages: none. A message that holds one cannot be rendered."""
        return {}

    async def process_vision_info(self, messages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The same under its former name."""
        return await self.process_multi_modal_info(messages)

    async def apply_chat_template(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Iterable[Any] | None = None,
        images: Sequence[Any] | None = None,
        videos: Sequence[Any] | None = None,
        audios: Sequence[Any] | None = None,
        remove_system_prompt: bool = False,
        **template_kwargs: Any,
    ) -> list[int]:
        """Token ids of the messages, rendered with the model's template, with the generation prompt.

        remove_system_prompt: only the tokens that the messages add after an answer of the model.
        Raises UserError for images, videos and audios.
        """
        refuse_media(images=images, videos=videos, audios=audios)
        ids = self.tokenizer.apply_chat_template(
            messages,
            tools,
            add_generation_prompt=True,
            remove_system_prompt=remove_system_prompt,
            **{**self.apply_chat_template_kwargs, **template_kwargs},
        )
        assert not isinstance(ids, str), "ids were asked for"
        return ids

    # ---- append-only tokens

    async def ct_build_initial_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        images: Sequence[Any] | None = None,
        videos: Sequence[Any] | None = None,
        audios: Sequence[Any] | None = None,
        mm_inputs_out: dict[str, Any] | None = None,
    ) -> list[int]:
        """The first prompt. Raises UserError if it is too long, and for images, videos, audios."""
        ids = self.continuous_token_builder.build_initial_tokens(
            messages, tools=tools, images=images, videos=videos, audios=audios, mm_inputs_out=mm_inputs_out
        )
        self._check_prompt(len(ids))
        return ids

    async def ct_merge_context_msg(
        self,
        previous_messages: Sequence[Mapping[str, Any]],
        updated_messages: Sequence[Mapping[str, Any]],
        runtime_token_ids: Sequence[int],
        response_mask: Sequence[int],
        response_logprobs: Sequence[float] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        """The tokens extended by those of the new messages, and mask and logprobs extended by zeros."""
        merged = self.continuous_token_builder.merge_context_tokens(
            previous_messages, updated_messages, runtime_token_ids, tools=tools
        )
        return merged, *self.continuous_token_builder.align_response_metadata(merged, response_mask, response_logprobs)

    ct_merge_non_assistant_msg = ct_merge_context_msg
    """The same under its name in verl 0.9.0."""

    async def ct_merge_assistant_token(
        self,
        runtime_token_ids: Sequence[int],
        assistant_token_ids: Sequence[int],
        response_mask: Sequence[int],
        response_logprobs: Sequence[float] | None = None,
        assistant_logprobs: Sequence[float] | None = None,
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        """The tokens extended by an answer, and mask and logprobs extended by the answer's."""
        merged = self.continuous_token_builder.merge_assistant_tokens(runtime_token_ids, assistant_token_ids)
        mask, logprobs = self.continuous_token_builder.align_response_metadata(
            merged, response_mask, response_logprobs, assistant_logprobs=assistant_logprobs
        )
        return merged, mask, logprobs

    @staticmethod
    def build_sglang_video_payload(videos: Sequence[Any] | None, mm_inputs: Mapping[str, Any]) -> None:
        """None: there are no videos. Raises UserError for any, and for what a processor said of one."""
        refuse_media(videos=videos, mm_inputs=mm_inputs)

    def _check_prompt(self, num_tokens: int) -> None:
        """Raises UserError if the prompt is too long; it is not truncated, as that would change its meaning."""
        length = self._rollout.prompt_length
        if length is not None and num_tokens > length:
            raise UserError(
                f"the prompt has {num_tokens} tokens, tools included, and rollout.prompt_length={length}; raise it, or "
                "leave the row out"
            )

    def _assert_mm_supported(self, has_multi_modal: bool) -> None:
        refuse_media(multi_modal_data=has_multi_modal)

    def _get_mm_processor_kwargs(self, audio_data: Sequence[Any] | None = None) -> dict[str, Any]:
        return dict(self.mm_processor_kwargs)

    # ---- for the loops that come with Ludus

    def _resources(self) -> LoopResources:
        """Tools and simulated users of the run; none outside of a run."""
        run = self.trainer_config.run
        return run if isinstance(run, LoopResources) else LoopResources.load(Config())

    @property
    def _rollout(self) -> RolloutSettings:
        """The rollout settings: lengths, turns and tools."""
        return self._resources().config.rollout

    def open_tools(self, agent_data: Any = None, **kwargs: Any) -> EpisodeTools:
        """The tools that the run's files name, for one trajectory: an async context manager. kwargs: those of `run`."""
        selection = (kwargs.get("extra_info") or {}).get("tool_selection")
        return self._resources().tool_set.open(
            kwargs.get("tools_kwargs"), selection, tokenizer=self.tokenizer.text.tokenizer, agent_data=agent_data
        )


@contextmanager
def simple_timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
    """Add the seconds of the block to `timing_raw[name]`."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - begun


def get_event_loop() -> asyncio.AbstractEventLoop:
    """The running event loop; if there is none, a new one, which is set for this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop
