"""An agent that asks for a word with a given first letter, as AReaL's guide shows it, with the OpenAI SDK alone.

It runs in Ludus's process (`rollout.agent.mode: inline`) and in processes of its own (`subproc`) as it is.
"""

import os
import re

from openai import AsyncOpenAI


class LettersAgent:
    async def run(self, data, **extra_kwargs):
        client = AsyncOpenAI(
            base_url=extra_kwargs.get("base_url") or os.getenv("OPENAI_BASE_URL"),
            api_key=extra_kwargs.get("api_key") or os.getenv("OPENAI_API_KEY"),
            http_client=extra_kwargs.get("http_client"),
            max_retries=0,
        )
        answer = await client.chat.completions.create(model="default", messages=data["messages"], max_tokens=6)
        reward = score(answer.choices[0], data["letter"])
        return reward, {"success": float(reward == 1.0)}


def score(choice, letter):
    """1.0 for one word that begins with the letter; half of it for one word, or for any text that begins so."""
    text = (choice.message.content or "").strip()
    is_word = choice.finish_reason == "stop" and re.fullmatch(r"[A-Za-z]+[.!]?", text) is not None
    return 0.5 * is_word + 0.5 * text.upper().startswith(letter)
