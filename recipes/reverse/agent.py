"""An agent that asks for letters in reverse order. The reward grows with every letter that is right."""

import difflib

import openai


class ReverseAgent:
    async def run(self, data, *, base_url, api_key, http_client=None, **extra_kwargs):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages = [{"role": "user", "content": data["question"]}]
        completion = await client.chat.completions.create(model="default", messages=messages, max_tokens=16)
        reward = score(completion.choices[0], data["answer"])
        return reward, {"success": float(reward == 1.0)}


def score(choice, answer):
    """How alike reply and answer are, 0 to 1: twice the characters in common, in order, over all of both."""
    if choice.finish_reason != "stop":
        return 0.0
    return difflib.SequenceMatcher(None, choice.message.content or "", answer, autojunk=False).ratio()
