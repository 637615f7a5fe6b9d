"""A user's script as it runs where neither torch nor a GPU is: it runs agents, trains, and reports how far it is.

python laptop.py URL BASE_MODEL STEPS — the key is in LUDUS_API_KEY. After each line that asks for it, it waits for one.
"""

import asyncio
import importlib.util
import json
import logging
import sys

import ludus.compat.art as art


async def rollout(model, question):
    client = model.openai_client()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}])
    for turn in range(2):
        if turn:
            trajectory.messages_and_choices.append({"role": "user", "content": "Again."})
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages()
        )
        trajectory.messages_and_choices.append(completion.choices[0])
    trajectory.reward = -float(sum(len(each.message.content or "") for each in trajectory.choices()))
    return trajectory


def tell(**facts):
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def main(url, base_model, num_steps):
    tell(has=[name for name in ("torch", "numpy", "transformers") if importlib.util.find_spec(name)])
    model = art.TrainableModel(name="agent-001", project="mail", base_model=base_model)
    await model.register(art.ServerBackend(url, patience_s=120))
    for step in range(num_steps):
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(model, f"Guess {g}.") for _ in range(3)) for g in range(2)), pbar_desc=None
        )
        tell(gathered=step, turns=[each.turn_ids() for group in groups for each in group])
        await asyncio.to_thread(sys.stdin.readline)
        result = await model.train(groups, on_progress=lambda progress: tell(stage=progress.stage))
        versions = [each.initial_policy_version for group in groups for each in group]
        tell(step=result.step, metrics=result.metrics, checkpoint=result.checkpoint_path, versions=versions)
    tell(done=await model.get_step(), modules=[name for name in sys.modules if name.split(".")[0] == "torch"])


logging.basicConfig(level=logging.WARNING)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
