"""An agent that asks for the sum of two numbers, and looks only at the last number of the reply."""

import re

import openai


class SumAgent:
    async def run(self, data, *, base_url, api_key, http_client=None, **extra_kwargs):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages = [{"role": "user", "content": data["question"]}]
        completion = await client.chat.completions.create(model="default", messages=messages, max_tokens=16)
        reward = score(completion.choices[0].message.content, data["answer"])
        return reward, {"success": reward}


def score(reply, answer):
    """1 if the last number of the reply is the answer, else 0."""
    return float(re.findall(r"-?\d+", reply or "")[-1:] == [str(answer)])
