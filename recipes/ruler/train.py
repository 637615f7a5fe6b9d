"""Short answers, taught by a judge: python recipes/ruler/train.py [--steps N] [--judge MODEL] [--url URL]

The loop is written as ART's users write it; only the import has changed.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import ludus
import ludus.compat.art as art
from ludus.compat.art.rewards import ruler_score_group

sys.path.insert(0, str(Path(__file__).parent))
import animals
import judge

GROUPS, MEMBERS = 6, 6
CONFIG = {
    "seed": 0,
    "model": {"lora": None},
    "engine": {"kv_bytes": 268435456},
    "trainer": {"row_tokens": 512, "optimizer": {"lr": 5.0e-5}},
    "gconfig": {"max_new_tokens": 40},
}


async def rollout(model: art.Model, question: str) -> art.Trajectory:
    client = model.openai_client()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}])
    completion = await client.chat.completions.create(model=model.get_inference_name(), messages=trajectory.messages())
    trajectory.messages_and_choices.append(completion.choices[0])
    answer = completion.choices[0].message.content or ""
    trajectory.metrics["good"] = judge.is_good(question, answer)
    trajectory.metrics["words"] = len(answer.split())
    return trajectory.finish()


async def held_out_score(model, split, plays=8):
    """Share of good answers to the held-out questions, by the rule and not by the judge."""
    asked = (rollout(model, question) for question in animals.held_out() for _ in range(plays))
    trajectories = await art.gather_trajectories(asked, pbar_desc=split)
    means = await model.log(trajectories, split=split)
    return means[f"{split}/good"], means[f"{split}/words"]


def open_backend(url):
    """Who trains: this process, or the server behind `url`, whose key is in LUDUS_API_KEY."""
    return art.LocalBackend(config=ludus.Config(**CONFIG)) if url is None else art.ServerBackend(url)


async def main(steps, judge_model, judge_settings, name, url):
    model = art.TrainableModel(name=name, project="ruler", base_model="smollm2-135m")
    async with open_backend(url) as backend:
        await model.register(backend)
        before = await held_out_score(model, "before")
        began = time.monotonic()
        questions = animals.training()
        for step in range(await model.get_step(), steps):
            chosen = random.Random(step).sample(questions, GROUPS)
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(model, question) for _ in range(MEMBERS)) for question in chosen),
                after_each=lambda group: ruler_score_group(
                    group, judge_model, judge_settings, judge.RUBRIC, swallow_exceptions=True
                ),
                pbar_desc=None,
            )
            # All weights are trained, and take two gigabytes with their optimizer: the last step alone is kept.
            await model.train(groups, save_checkpoint=step + 1 == steps)
            told = [trajectory for group in groups for trajectory in group]
            score, words = (sum(each.metrics[key] for each in told) / len(told) for key in ("ruler_score", "words"))
            print(f"step {step + 1:3d}  judge {score:.3f}  words {words:.1f}", flush=True)
        seconds = time.monotonic() - began
        after = await held_out_score(model, "after")
    summary = {
        "commit": commit(),
        "steps": steps,
        "train_seconds": round(seconds, 1),
        "success_before": before[0],
        "success_after": after[0],
        "words_before": before[1],
        "words_after": after[1],
    }
    model.log_files.folder.joinpath("summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


def commit():
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--name", default="short-answers")
    parser.add_argument("--judge", help="such as openai/o3; by default the judge of this folder")
    parser.add_argument("--judge-url", help="where it answers; by default its provider's address")
    parser.add_argument("--url", help="of a `ludus serve` that trains; by default this process does")
    given = parser.parse_args()
    with judge.serve() as own_url:
        at = given.judge_url if given.judge else own_url
        asyncio.run(main(given.steps, given.judge or "judge", {"api_base": at} if at else None, given.name, given.url))
