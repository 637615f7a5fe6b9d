"""The model for agents in the same program: what is said through it, rewarded and exported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.recorder import Recorder
from ludus.errors import AgentError, UserError
from ludus.gateway.in_process import InProcessGateway, SessionClient
from ludus.text.chat import ChatText


@pytest.fixture
def gateway(tokenizer_folder: Path) -> Iterator[InProcessGateway]:
    text = ChatText.load(tokenizer_folder)
    with InProcessGateway(Recorder(ScriptedEngine(lambda call: "I say 7.", text.tokenizer), text)) as gateway:
        yield gateway


async def talk(client: SessionClient, *contents: str) -> list[str]:
    """Completion ids of a conversation, asked by OpenAI's SDK."""
    sdk, messages, ids = client.openai(max_retries=0), [], []
    for content in contents:
        messages.append({"role": "user", "content": content})
        answer: Any = await sdk.chat.completions.create(model="default", messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        ids.append(answer.id)
    return ids


def test_an_agent_in_the_same_program(gateway: InProcessGateway) -> None:
    """Its SDK client is answered without a socket, and every turn is there with its tokens and its reward."""

    async def main() -> None:
        async with gateway.open("s1", group_id="g") as client:
            first, second = await talk(client, "Guess.", "higher")
            client.set_reward(first, 0.5)
            client.set_last_reward(1.0)
            interaction = client.get_interaction("resp_" + first.removeprefix("chatcmpl-"))
            assert (interaction.turn.id, interaction.reward) == (first, 0.5)
            assert interaction.turn.reply.content == "I say 7."
            rows = client.export_interactions()
            assert [row["completion_ids"] for row in rows] == [[first], [second]]
            assert rows[0]["token_ids"] == [*interaction.prompt_ids, *interaction.turn.sampled.token_ids]
            (row,) = client.export_interactions(style="concat")
            assert (row["completion_ids"], row["rewards"]) == ([first, second], [0.5, 1.0])
        assert client.episode().reward == 1.5

    asyncio.run(main())


def test_both_sdks_are_agents_of_one_session(gateway: InProcessGateway) -> None:
    """Anthropic's client asks in its own protocol, and its answer is rewarded by the id that it shows."""

    async def main() -> None:
        async with gateway.open() as client:
            await talk(client, "Guess.")
            answer = await client.anthropic(max_retries=0).messages.create(
                model="default", max_tokens=16, messages=[{"role": "user", "content": "Again."}]
            )
            assert answer.content[0].text == "I say 7." and answer.id.startswith("msg_")
            client.set_reward(answer.id, 2.0)
            assert [row["rewards"] for row in client.export_interactions()] == [[None], [2.0]]

    asyncio.run(main())


def test_rewards_become_returns_along_the_conversation(gateway: InProcessGateway) -> None:
    """A turn keeps half of what the turns after it return; that is done once, and no reward is set later."""

    async def main() -> None:
        async with gateway.open() as client:
            first, second, third = await talk(client, "a", "b", "c")
            client.set_reward(first, 1.0)
            client.set_last_reward(4.0)
            assert client.apply_reward_discount(0.5) == {first: 2.0, second: 2.0, third: 4.0}
            for again in (client.apply_reward_discount, lambda: client.set_last_reward(1.0)):
                with pytest.raises(UserError, match="discounted already"):
                    again()

    asyncio.run(main())


def test_what_cannot_be_rewarded_is_said(gateway: InProcessGateway) -> None:
    """No turn, an unknown turn, no number."""

    async def main() -> None:
        async with gateway.open() as client:
            with pytest.raises(AgentError, match="never called the model"):
                client.set_last_reward(1.0)
            await talk(client, "a")
            with pytest.raises(AgentError, match="must be a finite number"):
                client.set_last_reward(float("nan"))
            for look in (client.get_interaction, lambda shown: client.set_reward(shown, 1.0)):
                with pytest.raises(AgentError, match="completion id 'x'"):
                    look("x")

    asyncio.run(main())


def test_sessions_of_one_gateway_are_apart(gateway: InProcessGateway) -> None:
    """Several clients talk at once; each has its own turns, and a closed one is no way in."""

    async def main() -> None:
        clients = [gateway.open() for _ in range(5)]
        ids = await asyncio.gather(*(talk(client, "a", "b") for client in clients))
        for client, own in zip(clients, ids, strict=True):
            assert [turn.id for turn in client.episode().session.turns] == own
            await client.aclose()
            assert [turn.id for turn in client.episode().session.turns] == own
            with pytest.raises(openai.AuthenticationError, match="it may have ended"):
                await talk(client, "c")

    asyncio.run(main())
