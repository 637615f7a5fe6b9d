"""An agent that finds a hidden number from 1 to 20 in five guesses, written only with the OpenAI SDK.

Nothing here knows how the model is served or trained: the same class plays against any OpenAI-compatible URL.
"""

import re

import openai

RULES = (
    "You play a guessing game. I think of a number from 1 to 20. Reply with one number only. I answer higher or lower."
)
TURNS = 5


class GuessAgent:
    async def run(self, data, *, base_url, api_key, http_client=None, **extra_kwargs):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        return await self.play(client, data)

    async def play(self, client, data):
        """The reward of each guess by completion id, and whether the number was found."""
        low, high = data["low"], data["high"]
        messages = [{"role": "system", "content": RULES}, {"role": "user", "content": data["clue"]}]
        rewards, found = {}, False
        for _ in range(TURNS):
            completion = await client.chat.completions.create(model="default", messages=messages, max_tokens=6)
            choice = completion.choices[0]
            guess = read_guess(choice)
            rewards[completion.id] = score(guess, low, high, data["number"])
            found = guess == data["number"]
            if found:
                break
            if guess is None:
                answer = "Reply with one number."
            elif guess < data["number"]:
                answer, low = "higher", max(low, guess + 1)
            else:
                answer, high = "lower", min(high, guess - 1)
            messages += [{"role": "assistant", "content": choice.message.content}, {"role": "user", "content": answer}]
        return rewards, {"success": float(found)}


class OutcomeAgent(GuessAgent):
    """Paid only for the number: 1 if it was found, else 0, whatever the guesses before it were worth."""

    async def play(self, client, data):
        _, metrics = await super().play(client, data)
        return metrics["success"], metrics


def read_guess(choice):
    """The number the model named, or None if it said anything else or was cut off."""
    match = re.fullmatch(r"\s*(\d+)\.?\s*", choice.message.content or "")
    return int(match.group(1)) if match and choice.finish_reason == "stop" else None


def score(guess, low, high, number):
    """Reward of one guess among the numbers still possible, `low` to `high`.

    0.2 if it is a number, 0.3 if it agrees with every answer heard so far, up to 0.5 for how evenly it divides what is
    left, 0.2 if it is the number.
    """
    if guess is None:
        return 0.0
    if not low <= guess <= high:
        return 0.2
    return 0.5 + 0.5 * evenness(guess, low, high) + 0.2 * (guess == number)


def evenness(guess, low, high):
    """1 for a guess in the middle, 0 for one at the edge: by the numbers left if the answer is the worse one."""
    others = high - low
    if others < 2:
        return 1.0
    most_left, least_possible = max(guess - low, high - guess), (others + 1) // 2
    return (others - most_left) / (others - least_possible)
