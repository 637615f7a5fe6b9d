"""Ready-made rollout workflows with a reward function: a single answer, or several tries.

Knows: prompts, reward functions.  Knows not: sessions, groups, training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ludus.compat.areal.generation import GenerationHyperparameters, ModelRequest, ModelResponse
from ludus.compat.areal.rollout import EpisodeEngine, RolloutWorkflow
from ludus.compat.members import with_members
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.import_strings import import_function
from ludus.rewards.wrapper import AsyncRewardWrapper

RETRY_PROMPT = "That answer is wrong, or could not be read. Look for the mistake, then answer again."


def default_data_extract_prompt_fn(data: Mapping[str, Any]) -> Any:
    """The messages of a row."""
    return data["messages"]


class RLVRWorkflow(RolloutWorkflow):
    """One prompt, one answer, one reward."""

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: Any = None,
        tokenizer: Any = None,
        enable_thinking: bool = False,
        get_input_ids_fn: Callable[[Any, Any, bool], Sequence[int]] | str | None = None,
        data_extract_prompt_fn: Callable[[Any], Any] | str = default_data_extract_prompt_fn,
        *,
        timeout_seconds: float | None = 15.0,
        max_workers: int | None = None,
    ) -> None:
        """reward_fn: called in a separate process with prompt and answer as text, both as token ids, and the columns of
        the row. It and the other functions may also be import strings.
        gconfig: None: the run's.
        get_input_ids_fn: returns the prompt's token ids for messages, `tokenizer` and `enable_thinking`. None: the
        run's tokenizer and chat template are used.  tokenizer: only passed to `get_input_ids_fn`.
        timeout_seconds, max_workers: of the reward function, as for `AsyncRewardWrapper`.
        """
        self.gconfig = GenerationHyperparameters.of(gconfig).new(n_samples=1)
        self.enable_thinking = enable_thinking
        self.get_input_ids_fn = (
            None if get_input_ids_fn is None else import_function(get_input_ids_fn, "get_input_ids_fn")
        )
        self.data_extract_prompt_fn = import_function(data_extract_prompt_fn, "data_extract_prompt_fn")
        self.reward_fn = import_function(reward_fn, "reward_fn")
        self.async_reward_fn = AsyncRewardWrapper(self.reward_fn, timeout_seconds, max_workers)
        self.tokenizer = tokenizer

    async def arun_episode(self, engine: EpisodeEngine, data: Mapping[str, Any]) -> Any:
        answer = await self.ask(engine, self.data_extract_prompt_fn(data))
        reward = float(await self.score(engine, answer, data))
        return Result({answer.completion_id: reward}, {"success": float(reward > 0)})

    async def ask(self, engine: EpisodeEngine, messages: Any) -> ModelResponse:
        """The answer to a prompt."""
        if self.get_input_ids_fn is None:
            return await engine.achat(messages, self.gconfig, enable_thinking=self.enable_thinking)
        prompt_ids = self.get_input_ids_fn(messages, self.tokenizer, self.enable_thinking)
        return await engine.agenerate(ModelRequest(input_ids=prompt_ids, gconfig=self.gconfig))

    async def score(self, engine: EpisodeEngine, answer: ModelResponse, data: Mapping[str, Any]) -> Any:
        """The reward of an answer."""
        prompt = engine.decode(answer.input_tokens)
        text = engine.decode(answer.output_tokens, skip_special=True)
        columns = {name: value for name, value in data.items() if name not in _POSITIONAL}
        return await self.async_reward_fn(prompt, text, answer.input_tokens, answer.output_tokens, **columns)


@with_members("areal", "workflow.multi_turn.MultiTurnWorkflow")
class MultiTurnWorkflow(RLVRWorkflow):
    """Tries until an answer is right or `max_turns` are used up; each try sees those before it."""

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: Any = None,
        tokenizer: Any = None,
        max_turns: int = 2,
        turn_discount: float = 1.0,
        *,
        retry_prompt: str = RETRY_PROMPT,
        **options: Any,
    ) -> None:
        """turn_discount: factor on the last reward for each earlier try; the result is the reward of all tries.
        retry_prompt: message to the model after a wrong answer.  options: of `RLVRWorkflow`.
        """
        if max_turns < 1:
            raise UserError(f"max_turns={max_turns} must be at least 1")
        super().__init__(reward_fn, gconfig, tokenizer, **options)
        self.max_turns = max_turns
        self.turn_discount = turn_discount
        self.retry_prompt = retry_prompt

    async def arun_episode(self, engine: EpisodeEngine, data: Mapping[str, Any]) -> Any:
        messages = list(self.data_extract_prompt_fn(data))
        tries: list[str] = []
        worth = 1.0
        while True:
            answer = await self.ask(engine, messages)
            tries.append(answer.completion_id)
            reward = float(await self.score(engine, answer, data))
            if reward > 0 or len(tries) == self.max_turns:
                break
            worth *= self.turn_discount
            said = engine.decode(answer.output_tokens_without_stop)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": self.retry_prompt}]
        metrics = {"success": float(reward > 0), "tries": float(len(tries))}
        return Result(dict.fromkeys(tries, reward * worth), metrics, are_returns=True)


_POSITIONAL = ("prompt", "completions", "prompt_ids", "completion_ids")
"""Names of a reward function's positional arguments; columns of these names are not passed as keywords."""
