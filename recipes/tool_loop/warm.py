"""A short supervised start: demonstrations of the tool, so that the model calls it often enough to learn the rest.

python recipes/tool_loop/warm.py [runs/tool_loop-warm]
"""

import json
import sys
from pathlib import Path

import ludus
from ludus.compat.verl.tools.function_tool import load_function_tools_from_path

sys.path.insert(0, str(Path(__file__).parent))
import problems

NUM_DEMONSTRATIONS = 96
(CALCULATE,) = load_function_tools_from_path(str(Path(__file__).parent / "tools.py"))


def demonstration(row):
    """A conversation as a chat completion request has it: question, call, value, answer."""
    call = {"name": "calculate", "arguments": json.dumps({"expression": row["extra_info"]["expression"]})}
    value = row["reward_model"]["ground_truth"]
    return {
        "tools": [CALCULATE.tool_schema.model_dump(exclude_unset=True)],
        "messages": [
            *row["prompt"],
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "1", "content": value},
            {"role": "assistant", "content": value},
        ],
    }


def main(folder):
    config = ludus.load_config(Path(__file__).parent / "run.yaml", ["model.path=smollm2-135m"])
    rows = [demonstration(row) for row in problems.training()[:NUM_DEMONSTRATIONS]]
    steps = ludus.train_supervised(config, rows, folder, ludus.SftSettings(), on_step=show)
    print(f"{len(rows)} demonstrations, {steps} steps, saved in {folder}")


def show(step, metrics):
    print(f"step {step:3d}  nll {metrics['train/nll']:.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tool_loop-warm"))
