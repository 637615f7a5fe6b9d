"""What agents in worker processes call. Whoever runs one imports this file: it brings no SDK that is not used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import httpx


def ask(text: str = "2+2?") -> str:
    """The completion's id of one blocking call of the model that the environment names."""
    body = {"model": "default", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    response = httpx.post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", json=body, headers=headers)
    completion_id: str = response.raise_for_status().json()["id"]
    return completion_id


def ask_with_sdk(text: str = "2+2?") -> Any:
    """The same call by OpenAI's SDK, which finds the model in its environment."""
    import openai

    with openai.OpenAI(max_retries=0) as client:
        return client.chat.completions.create(model="default", messages=[{"role": "user", "content": text}])


async def answer(data: Mapping[str, Any]) -> float:
    return float(ask_with_sdk().choices[0].message.content == "four")


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("the index is not there")

    async def run(self, data: Mapping[str, Any]) -> float:
        return 1.0
