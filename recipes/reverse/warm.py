"""A short supervised start: letters and how they are written backwards, so that some answers are nearly right.

python recipes/reverse/warm.py [runs/reverse-warm]
"""

import sys
from pathlib import Path

import ludus

sys.path.insert(0, str(Path(__file__).parent))
import spelling

NUM_DEMONSTRATIONS = 144


def demonstration(row):
    turns = (("user", row["question"]), ("assistant", row["answer"]))
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def main(folder):
    config = ludus.load_config(Path(__file__).parent / "run.yaml", ["model.path=smollm2-135m"])
    rows = [demonstration(row) for row in spelling.training()[:NUM_DEMONSTRATIONS]]
    steps = ludus.train_supervised(config, rows, folder, ludus.SftSettings(), on_step=show)
    print(f"{len(rows)} demonstrations, {steps} steps, saved in {folder}")


def show(step, metrics):
    print(f"step {step:3d}  nll {metrics['train/nll']:.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/reverse-warm"))
