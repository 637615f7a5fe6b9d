"""CAMEL's model over a workflow's client, with the two classes of CAMEL's that it derives from written down here:
CAMEL's own libraries do not go with those that the tests have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from ludus.compat.areal import camel_model
from ludus.compat.areal.experimental.camel.openai_model import AReaLOpenAICompatibleModel, AReaLTokenCounter
from ludus.compat.areal.openai_client import ArealOpenAI
from ludus.compat.areal.rollout import EpisodeEngine
from ludus.errors import UserError
from ludus.types import Episode
from tests.compat.areal.test_rollout import workflow


class BaseModelBackend:
    """What an agent of CAMEL's asks."""

    def __init__(
        self,
        model_type: Any,
        model_config_dict: dict[str, Any],
        api_key: str | None,
        url: str | None,
        token_counter: Any,
        timeout: float | None,
        max_retries: int,
    ) -> None:
        self.model_type, self.model_config_dict, self._token_counter = model_type, model_config_dict, token_counter

    async def arun(self, messages: Any, response_format: Any = None, tools: Any = None) -> Any:
        return await self._arun(messages, response_format, tools)  # type: ignore[attr-defined]


@pytest.fixture
def camel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    modules = {
        "camel": {},
        "camel.models": {},
        "camel.models.base_model": {"BaseModelBackend": BaseModelBackend},
        "camel.utils": {"BaseTokenCounter": object},
    }
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    yield
    for made in (camel_model._backend, camel_model._counter):
        made.cache_clear()


class Words:
    """A tokenizer with a token for each word."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, token_ids: list[int]) -> str:
        return " ".join("x" * token_id for token_id in token_ids)


@pytest.mark.usefixtures("camel")
def test_an_agent_of_camels_asks_the_episodes_model(play: Callable[..., Episode]) -> None:
    """Its calls are recorded and rewarded as those of the client are; an engine says how long they may take."""

    async def run(engine: EpisodeEngine, data: Any) -> Any:
        client = ArealOpenAI(engine)
        assert client.engine.config.request_timeout is None or client.engine.config.request_timeout > 0
        given = {"openai_client": client, "tokenizer": Words(), "model_config_dict": {"max_tokens": 4}}
        model = AReaLOpenAICompatibleModel(model_type="areal", **given)
        answer = await model.arun([{"role": "user", "content": data["question"]}], tools=[])
        with pytest.raises(UserError, match="response_format cannot act"):
            await model.arun([], response_format=Words)
        client.set_reward(answer.id, 0.5)
        return client.export_interactions()

    episode = play(workflow(run))
    (turn,) = episode.session.turns
    assert episode.outcome.kind == "ok", episode.outcome
    assert episode.rewards == {turn.id: 0.5} and turn.sampling.max_new_tokens == 4


@pytest.mark.usefixtures("camel")
def test_the_tokens_of_a_conversation_are_counted() -> None:
    """Every field of a message, three around each, three before the answer; a picture has none."""
    counter = AReaLTokenCounter(Words(), 3)
    assert counter.count_tokens_from_messages([{"role": "user", "content": "one two"}]) == 3 + 3 + 3
    parts = [{"type": "text", "text": "one two three"}]
    assert counter.count_tokens_from_messages([{"role": "user", "content": parts}]) == 4 + 3 + 3
    assert counter.decode(counter.encode("a bc")) == "x xx"
    with pytest.raises(UserError, match="read text alone"):
        counter.count_tokens_from_messages([{"role": "user", "content": [{"type": "image_url"}]}])


def test_without_camel_it_says_what_to_install() -> None:
    with pytest.raises(UserError, match="camel-ai"):
        AReaLOpenAICompatibleModel("areal", None, None)
