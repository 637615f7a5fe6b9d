"""verl's rows, as Parquet gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ludus.compat.importing.files import read_rows
from ludus.compat.verl.importer import ImportedRows, import_verl
from ludus.errors import UserError


def row(question: str, tool: str, **fields: Any) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "agent_name": "tool_agent",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {
            "index": 0,
            "need_tools_kwargs": True,
            "tools_kwargs": {tool: {"create_kwargs": {"ground_truth": "72"}}},
            "interaction_kwargs": {"name": "gsm8k", "query": question},
        },
        **fields,
    }


def fates(found: ImportedRows) -> dict[str, tuple[str, str]]:
    return {entry.name: (entry.fate, entry.note) for entry in found.entries}


def test_rows_come_through_parquet_as_they_were(tmp_path: Path) -> None:
    """What Parquet pads with nothing is taken off again: a row has the tools it had."""
    rows = [row("a", "calc"), row("b", "search"), row("c", "calc", uid=None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    read = read_rows(tmp_path / "train.parquet")
    assert "search" in read[0]["extra_info"]["tools_kwargs"]  # the trap
    found = import_verl(read)
    del rows[2]["uid"]
    assert list(found.rows) == rows


def test_the_report_names_columns_loops_tools_and_users() -> None:
    """With how often they occur."""
    told = fates(import_verl([row("a", "calc"), row("b", "calc"), row("c", "search", agent_name=None)]))
    assert told["agent_name"] == (
        "taken",
        "which agent loop plays the row: tool_agent (2); 1 rows have none",
    )
    assert told["extra_info.tools_kwargs"][1] == "arguments of tools: calc (2), search (1)"
    assert told["extra_info.interaction_kwargs"][1] == "simulated users: gsm8k (3)"
    assert told["data_source"][1].endswith("openai/gsm8k (3)")
    assert told["ability"] == ("taken", "passed to the agent loop")


def test_what_is_no_text_is_left_out() -> None:
    """Images and bytes, by the name of their columns; empty lists of images lose nothing."""
    found = import_verl(
        [row("a", "calc", images=[{"bytes": b"x"}], blob=[{"deep": b"x"}]), row("b", "calc", images=[])]
    )
    told = fates(found)
    assert told["images"] == ("left out", "Ludus trains on text alone")
    assert told["blob"] == ("left out", "it holds bytes, which a row of JSON cannot")
    assert "images" not in found.rows[0]


def test_rows_without_a_prompt_are_left_out_by_number() -> None:
    """The first of them each, the others together."""
    bad: list[dict[str, Any]] = [{"prompt": None}, {"prompt": [{"content": "no role"}]}, *[{"prompt": []}] * 30]
    found = import_verl([row("a", "calc"), *bad])
    told = fates(found)
    assert len(found.rows) == 1
    assert told["row 1"] == ("left out", "its prompt is None; it must be messages, or a text")
    assert "no message with a role" in told["row 2"][1]
    assert told["12 more rows"][0] == "left out"


def test_a_text_is_the_message_of_a_user() -> None:
    """As older data has it, and the report says so."""
    found = import_verl([{"prompt": "How many?"}])
    assert found.rows[0]["prompt"] == [{"role": "user", "content": "How many?"}]
    assert ("prompt", "changed") in {(entry.name, entry.fate) for entry in found.entries}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.csv", "a", "is no file of rows"),
        ("rows.jsonl", "{", "line 1 of"),
        ("rows.json", "[1]", "must hold a JSON array of objects"),
        ("rows.parquet", "nonsense", "is not valid Parquet"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    """With what is wrong."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        read_rows(tmp_path / name)
