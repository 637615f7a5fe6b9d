"""Plays the held-out games with a saved model and plain transformers: no Ludus in this process.

python recipes/guess/play.py runs/guess/model
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent))
import agent
import games

PLAYS_PER_GAME = 4


class TransformersClient:
    """Just enough of `openai.AsyncOpenAI` for the agent, answered by `model.generate`."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.chat = SimpleNamespace(completions=self)
        self.count = 0

    async def create(self, *, model, messages, max_tokens):
        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            sampled = self.model.generate(**prompt, max_new_tokens=max_tokens, do_sample=True, top_k=0)
        new = sampled[0, prompt["input_ids"].shape[1] :]
        stopped = int(new[-1]) == self.tokenizer.eos_token_id
        message = SimpleNamespace(content=self.tokenizer.decode(new, skip_special_tokens=True))
        choice = SimpleNamespace(message=message, finish_reason="stop" if stopped else "length")
        self.count += 1
        return SimpleNamespace(id=str(self.count), choices=[choice])


async def main(folder):
    client = TransformersClient(folder)
    rows = games.held_out() * PLAYS_PER_GAME
    found = 0.0
    for row in rows:
        _, metrics = await agent.GuessAgent().play(client, row)
        found += metrics["success"]
    print(json.dumps({"success": round(found / len(rows), 4), "games": len(rows), "model": str(folder)}))


if __name__ == "__main__":
    torch.manual_seed(0)
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/guess/model")))
