"""A short supervised start: worked solutions that ask the tool before they answer, so that the model knows the form.

python recipes/gsm8k/warm.py [runs/gsm8k-warm]
"""

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet
import yaml

import ludus

HERE = Path(__file__).parent
NUM_DEMONSTRATIONS = 96
LONGEST = 250  # characters of a solution: short ones show the form as well


def demonstration(row, tools):
    """A conversation as a chat completion request has it: problem, steps and call, what the tool says, answer."""
    answer = row["reward_model"]["ground_truth"]
    steps = re.sub(r"<<[^>]*>>", "", row["extra_info"]["answer"].split("####")[0]).strip()
    call = {"name": tools[0]["function"]["name"], "arguments": json.dumps({"answer": answer})}
    return {
        "tools": tools,
        "messages": [
            *row["prompt"],
            {"role": "assistant", "content": steps, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "1", "content": f"Current parsed answer={answer!r} reward=1.0"},
            {"role": "assistant", "content": f"#### {answer}"},
        ],
    }


def main(folder):
    config = ludus.load_config(HERE / "run.yaml", ["model.path=smollm2-135m"])
    entries = yaml.safe_load((HERE / "tools.yaml").read_text())["tools"]
    tools = [entry["tool_schema"] for entry in entries]
    problems = pyarrow.parquet.read_table(Path(config.train_dataset.path).expanduser()).to_pylist()
    short = [problem for problem in problems if len(problem["extra_info"]["answer"]) < LONGEST]
    rows = [demonstration(problem, tools) for problem in short[:NUM_DEMONSTRATIONS]]
    steps = ludus.train_supervised(config, rows, folder, ludus.SftSettings(), on_step=show)
    print(f"{len(rows)} demonstrations, {steps} steps, saved in {folder}")


def show(step, metrics):
    print(f"step {step:3d}  nll {metrics['train/nll']:.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/gsm8k-warm"))
