"""`ludus data`: writes data sets for recipes as tables of rows in verl's format.

Knows: where a data set is, how its fields become columns.  Knows not: agents, tools, training.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ludus.api.rows import load_rows
from ludus.cli.console import say
from ludus.errors import UserError

_SPLITS = ("train", "test")
_TOOL = "calc_gsm8k_reward"

_HUB_ID = "openai/gsm8k"
_HUB_FILE = "main/{split}-00000-of-00001.parquet"
_SUFFIXES = (".jsonl", ".parquet", ".json")
_FINAL = re.compile(r"####\s*(\S+)\s*$")
_RULES = "Solve the problem step by step. End with the answer, a number, after '####'."
_RULES_OF_TOOL = (
    f"Solve the problem step by step. Ask the tool {_TOOL} whether your number is right before you answer, and correct "
    "it where it is not. End with the answer, a number, after '####'."
)


def gsm8k(
    source: Annotated[
        Path | None, Option("--from", metavar="FOLDER", help="Folder with train and test as .jsonl; or the hub.")
    ] = None,
    out: Annotated[Path, Option(metavar="FOLDER", help="Where the tables go.")] = Path("~/data/gsm8k"),
    agent: Annotated[str, Option(metavar="NAME", help="The rows' agent_name.")] = "tool_agent",
) -> None:
    """Write GSM8K, 8.8 thousand word problems of school mathematics, for agent loops.

    train.parquet and test.parquet have prompts, solutions, agent_name and the
    arguments of tools.

    [bold]Example:[/]  ludus data gsm8k --from downloads/gsm8k
    """
    out = out.expanduser()
    out.mkdir(parents=True, exist_ok=True)
    for split in _SPLITS:
        problems = _from_hub(split) if source is None else _from_folder(source.expanduser(), split)
        rows = list(gsm8k_rows(problems, split, agent))
        path = out / f"{split}.parquet"
        _write(rows, path)
        say(f"{path}: {len(rows):,} rows")


def gsm8k_rows(problems: Sequence[Mapping[str, Any]], split: str, agent: str) -> Iterator[dict[str, Any]]:
    """Rows in verl's format from problems with `question` and `answer`. Raises UserError, which names the problem, if
    one is invalid."""
    uses_tool = agent == "tool_agent"
    for idx, problem in enumerate(problems):
        question, answer = problem.get("question"), problem.get("answer")
        final = _FINAL.search(answer) if isinstance(answer, str) else None
        if not isinstance(question, str) or final is None:
            raise UserError(
                f"problem {idx} of {split} must have a `question`, and an `answer` that ends in '#### <number>', "
                f"but is {dict(problem)!r:.200}"
            )
        solution = final.group(1).replace(",", "")
        extra: dict[str, Any] = {"split": split, "index": idx, "question": question, "answer": answer}
        if uses_tool:
            extra["need_tools_kwargs"] = True
            extra["tools_kwargs"] = {_TOOL: {"create_kwargs": {"ground_truth": solution}}}
        yield {
            "data_source": _HUB_ID,
            "agent_name": agent,
            "prompt": [
                {"role": "system", "content": _RULES_OF_TOOL if uses_tool else _RULES},
                {"role": "user", "content": question},
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": solution},
            "extra_info": extra,
        }


def _from_folder(folder: Path, split: str) -> Sequence[Mapping[str, Any]]:
    for suffix in _SUFFIXES:
        path = folder / f"{split}{suffix}"
        if path.is_file():
            return load_rows(path, f"the {split} split")
    names = ", ".join(f"{split}{suffix}" for suffix in _SUFFIXES)
    raise UserError(f"there is none of {names} in {str(folder)!r} (looked from {Path.cwd()})")


def _from_hub(split: str) -> Sequence[Mapping[str, Any]]:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise UserError(
            "downloading needs huggingface_hub: pip install huggingface_hub, or pass --from FOLDER"
        ) from None
    try:
        path = hub.hf_hub_download(_HUB_ID, _HUB_FILE.format(split=split), repo_type="dataset")
    except (OSError, ValueError) as error:  # no network, no such file, or no access to it
        raise UserError(
            f"cannot download {_HUB_ID} from the hub: {error}; get train.jsonl and test.jsonl from "
            "https://github.com/openai/grade-school-math and pass their folder with --from"
        ) from None
    return load_rows(path, f"the {split} split")


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise UserError("writing Parquet needs pyarrow: pip install 'ludus[parquet]'") from None
    parquet.write_table(arrow.Table.from_pylist(rows), path, compression="zstd")
