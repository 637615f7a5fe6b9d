"""An OpenAI client for rollout workflows, with rewards and the recorded interactions: `ArealOpenAI(engine)`.

Knows: the episode's engine, OpenAI's SDK, rewards by turn.  Knows not: tokens, training.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ludus.compat.areal.rollout import EpisodeEngine
from ludus.compat.members import with_members
from ludus.episodes.reward import Result
from ludus.errors import UserError
from ludus.gateway.interactions import Interaction, SessionRewards
from ludus.runs.interactions import Style, message_json
from ludus.types import SessionRecord


@with_members("areal", "experimental.openai.types.InteractionWithTokenLogpReward")
@dataclass(frozen=True, slots=True)
class ExportedInteraction(Interaction):
    """A model call that is returned for training, with earlier calls that are trained along with it."""

    path: tuple[Interaction, ...] = ()
    """Calls that are trained: this one, and with style `concat` all on its path from the first."""
    is_discounted: bool = False
    """Whether the rewards are already returns."""

    @property
    def interaction_id(self) -> str:
        """Id of the completion."""
        return self.turn.id

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the request, in OpenAI's format."""
        return [message_json(message) for message in self.turn.messages]

    @property
    def output_message_list(self) -> list[dict[str, Any]]:
        """The messages of the answer."""
        return [message_json(self.turn.reply)]


def ArealOpenAI(  # noqa: N802  # the name that its users know
    engine: EpisodeEngine,
    tokenizer: Any = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    engine_max_tokens: int | None = None,
    chat_template_type: str | None = None,
    lora_name: str | None = None,
    **options: Any,
) -> Any:
    """An `openai.AsyncOpenAI` whose calls belong to this episode, with the additional methods
    `set_reward(completion_id, reward)`, `set_last_reward(reward)`, `apply_reward_discount(turn_discount)`,
    `get_interaction(completion_id)` and `export_interactions(style)`. engine: the episode's. Calls need no `model`.

    tokenizer, tool_call_parser, reasoning_parser, chat_template_type, lora_name: accepted without effect; the run's
    model and configuration apply, and continuations are always token-exact.  options: other arguments of the client.
    Raises UserError if the SDK is not installed.
    """
    del tokenizer, tool_call_parser, reasoning_parser, chat_template_type, lora_name
    if engine_max_tokens is not None:
        raise UserError(
            f"engine_max_tokens={engine_max_tokens} cannot act; set gconfig.max_new_tokens for one answer, "
            "rollout.max_tokens for the whole episode, or max_tokens in a request"
        )
    try:
        openai = importlib.import_module("openai")
    except ModuleNotFoundError:
        raise UserError("ArealOpenAI is a client of openai: pip install openai") from None
    context = engine.context
    given = {"base_url": context.base_url, "api_key": context.api_key, "http_client": context.http_client}
    client = openai.AsyncOpenAI(**{**given, "max_retries": 0, **options})
    rewards = SessionRewards(engine.session)
    for name in ("set_reward", "set_last_reward", "apply_reward_discount", "get_interaction"):
        setattr(client, name, getattr(rewards, name))
    client.engine = engine
    for resource in (client.chat.completions, client.responses):  # fill in `model`, as there is only one
        resource.create = partial(resource.create, model="default")
    client.export_interactions = partial(export_interactions, rewards)
    return client


def export_interactions(
    rewards: SessionRewards, style: Style = "individual", reward_discount: float | None = None
) -> dict[str, ExportedInteraction]:
    """The calls to train, by completion id: all of them, or with `concat` only those that no other call continues.

    With `concat` the earlier calls are part of these, each with its own reward.  reward_discount: applied first.
    """
    if reward_discount is not None:
        rewards.apply_reward_discount(reward_discount)
    record = rewards.session.snapshot()
    if style == "individual":
        chains = [(turn,) for turn in record.turns]
    elif style == "concat":
        chains = [_path(record, chain[-1].id) for chain in record.chains(record.turns)]
    else:
        raise UserError(f"style={style!r} is not known; there are 'individual' and 'concat'")
    paths = [tuple(rewards.get_interaction(turn.id) for turn in chain) for chain in chains]
    return {
        last.turn.id: ExportedInteraction(
            last.turn, last.prompt_ids, last.reward, (*before, last), rewards.is_discounted
        )
        for *before, last in paths
    }


def claim_interactions(record: SessionRecord, interactions: Sequence[ExportedInteraction]) -> Result:
    """Rewards of the calls that were returned; all others are left out.

    Raises UserError for a call of another episode.
    """
    known = {turn.id for turn in record.turns}
    wanted = {item.turn.id: item.reward for exported in interactions for item in exported.path}
    for turn_id in wanted.keys() - known:
        raise UserError(f"the interaction {turn_id!r} is not of this episode, which has {len(known)} calls")
    return Result(
        {turn_id: reward for turn_id, reward in wanted.items() if reward is not None},
        left_out={turn.id: tuple(range(len(turn.sampled.token_ids))) for turn in record.turns if turn.id not in wanted},
        are_returns=any(item.is_discounted for item in interactions),
    )


def _path(record: SessionRecord, turn_id: str) -> tuple[Any, ...]:
    """The turns from the first to this one, each of which extends the tokens of the one before."""
    by_id = {turn.id: turn for turn in record.turns}
    path = [by_id[turn_id]]
    while (prefix := path[0].prefix) is not None:
        path.insert(0, by_id[prefix])
    return tuple(path)
