"""Rows in the originals' columns: python rows.py FOLDER, which gets `areal/gsm8k/` and `verl/` with train and test.

For verl sums of two numbers below ten, after two that are solved; a quarter of all is held out. For AReaL the larger of
two numbers, with 100 pairs held out: its scorer computes, so that of sums it takes "29 + 96 =" for 125.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_SOLVED = (("2 + 3", 5), ("6 + 2", 8))


def write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def larger(a: int, b: int) -> Row:
    return {"question": f"Which number is larger, {a} or {b}?", "answer": f"{max(a, b)}\n#### {max(a, b)}"}


def added(index: int, a: int, b: int, split: str) -> Row:
    said = [
        {"role": role, "content": text}
        for what, total in _SOLVED
        for role, text in (("user", f"{what} = ?"), ("assistant", f"#### {total}"))
    ]
    return {
        "data_source": "openai/gsm8k",
        "prompt": [*said, {"role": "user", "content": f"{a} + {b} = ?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"index": index, "split": split},
    }


def main(folder: Path) -> None:
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100) if a != b]
    sums = [(a, b) for a in range(10) for b in range(10)]
    random.Random(3).shuffle(pairs)
    random.Random(3).shuffle(sums)
    for split, some_pairs, some_sums in (("train", pairs[:300], sums[:75]), ("test", pairs[300:400], sums[75:])):
        write(folder / "areal" / "gsm8k" / f"{split}.jsonl", [larger(*pair) for pair in some_pairs])
        write(folder / "verl" / f"{split}.jsonl", [added(at, *each, split) for at, each in enumerate(some_sums)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
