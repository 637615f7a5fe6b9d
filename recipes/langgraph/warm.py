"""A short supervised start: demonstrations of the tool, so that the model calls it often enough to learn the rest.

python recipes/langgraph/warm.py [runs/langgraph-warm]
"""

import json
import sys
from pathlib import Path

from langchain_core.utils.function_calling import convert_to_openai_tool

import ludus

sys.path.insert(0, str(Path(__file__).parent))
import loop
import problems

NUM_DEMONSTRATIONS = 160


def demonstration(row):
    """A conversation as a chat completion request has it: question, a call and a value for each step, answer."""
    messages = list(row["prompt"])
    for number, (a, b) in enumerate(row["extra_info"]["steps"]):
        call = {"name": loop.calculate.name, "arguments": json.dumps({"a": a, "b": b})}
        calls = [{"id": str(number), "type": "function", "function": call}]
        value = str(problems.operate(a, b))
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": str(number), "content": value})
    messages.append({"role": "assistant", "content": value})
    return {"tools": [convert_to_openai_tool(loop.calculate)], "messages": messages}


def main(folder):
    config = ludus.load_config(Path(__file__).parent / "run.yaml", ["model.path=smollm2-135m"])
    rows = [demonstration(row) for row in problems.training()[:NUM_DEMONSTRATIONS]]
    steps = ludus.train_supervised(config, rows, folder, ludus.SftSettings(), on_step=show)
    print(f"{len(rows)} demonstrations, {steps} steps, saved in {folder}")


def show(step, metrics):
    print(f"step {step:3d}  nll {metrics['train/nll']:.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/langgraph-warm"))
