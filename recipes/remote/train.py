"""A program that plays and rewards on this machine, and trains on another: neither torch nor a GPU is needed here.

python recipes/remote/train.py --url http://gpu-box:7999    with the key of `ludus serve` there in LUDUS_API_KEY
python recipes/remote/train.py                              with a server that it starts itself, as a second process
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

from game import GUESSES, RULES, Play, demonstrations, held_out, training

from ludus import art

ROOT = Path("runs") / "remote"
NUM_DEMONSTRATIONS = 96
GAMES_PER_STEP, PLAYERS = 8, 4
EVAL_PLAYERS = 8


async def rollout(model, game):
    client, play = model.openai_client(), Play(game)
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "system", "content": RULES}, {"role": "user", "content": play.opening}]
    )
    for _ in range(GUESSES):
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=3
        )
        trajectory.messages_and_choices.append(completion.choices[0])
        answer = play.answer(completion.choices[0].message.content)
        if play.found:
            break
        trajectory.messages_and_choices.append({"role": "user", "content": answer})
    trajectory.reward = play.reward
    trajectory.metrics["success"] = play.found
    return trajectory.finish()


async def evaluate(model, step):
    """Share of held-out games that are won, and their mean reward."""
    players = (rollout(model, game) for game in held_out() for _ in range(EVAL_PLAYERS))
    trajectories = await art.gather_trajectories(players, pbar_desc=f"held out, step {step}")
    await model.log(trajectories, split="val", step=step)
    return means(trajectories)


def means(trajectories):
    return {
        "success": fmean(each.metrics["success"] for each in trajectories),
        "reward": fmean(each.reward for each in trajectories),
    }


async def train(url, key, name, num_steps):
    model = art.TrainableModel(name=name, project="remote", base_model="smollm2-135m", base_path=str(ROOT / "laptop"))
    await model.register(art.ServerBackend(url, key))
    step, games = await model.get_step(), training()
    # A program that was stopped goes on from the server's step; what came before lies in the state.
    if step == 0:
        shown = [art.Trajectory(messages_and_choices=messages) for messages in demonstrations(NUM_DEMONSTRATIONS)]
        step = (await model.train_sft(shown, art.TrainSFTConfig(learning_rate=1e-3, batch_size=8))).step
    state = model.read_state() or model.merge_state({"before": await evaluate(model, step), "train_seconds": 0.0})
    while step < num_steps:
        began = time.monotonic()
        chosen = random.Random(step).sample(games, GAMES_PER_STEP)
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(model, game) for _ in range(PLAYERS)) for game in chosen),
            pbar_desc=None,
        )
        step = (await model.train(groups, learning_rate=5e-4)).step
        await model.delete_checkpoints()
        scores = means([each for group in groups for each in group])
        print(f"step {step}/{num_steps}", *(f"{name} {score:.3f}" for name, score in scores.items()), flush=True)
        state = model.merge_state({"train_seconds": state["train_seconds"] + time.monotonic() - began})
    return state, await evaluate(model, step)


@contextlib.contextmanager
def server():
    """The address and the key of `ludus serve`, as it would run on another machine."""
    key = secrets.token_hex(24)
    settings = ["trainer.row_tokens=512", "engine.kv_bytes=268435456"]
    options = ["--port", "0", "--folder", str(ROOT / "server"), *settings]
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus", "serve", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LUDUS_API_KEY": key},
    )
    try:
        words = process.stdout.readline().split()
        if words[:2] != ["serving", "at"]:
            raise SystemExit("the server did not start")
        print(*words, flush=True)
        yield words[2], key
    finally:
        process.terminate()
        process.wait()


def commit():
    """Of the code that ran. None: it is no checkout."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--name", default="guesser", help="of the model; one that was begun goes on")
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    where = server() if asked.url is None else contextlib.nullcontext((asked.url, None))
    with where as (url, key):
        state, after = asyncio.run(train(url, key, asked.name, asked.steps))
    summary = {
        "commit": commit(),
        "steps": asked.steps,
        "train_seconds": round(state["train_seconds"], 1),
        **{f"{name}_before": score for name, score in state["before"].items()},
        **{f"{name}_after": score for name, score in after.items()},
        "has_torch_here": "torch" in sys.modules,
    }
    (ROOT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
