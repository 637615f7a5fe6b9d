from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ludus.runs.folder import RESUMED, read_metrics
from ludus.runs.watch.curves import Curves

known = {"a": st.floats(-9, 9), "b/c": st.integers(0, 9)}
rows = st.fixed_dictionaries({"step": st.integers(0, 5)}, optional={**known, RESUMED: st.just(1.0)}).map(json.dumps)
odd = st.sampled_from(["", "{", "[]", '{"a": 1}', '{"step": "x"}', '{"step": 1, "a": null}', "\xff"])
lines = st.lists(st.one_of(rows, odd), max_size=20)


@given(lines=lines, cuts=st.lists(st.integers(0, 400), max_size=4))
def test_columns_hold_what_the_file_holds_however_it_grew(
    lines: list[str], cuts: list[int], tmp_path_factory: object
) -> None:
    """Read in pieces, also in the middle of a line, they are the rows that are read at once."""
    folder: Path = tmp_path_factory.mktemp("run")  # type: ignore[attr-defined]
    content = "".join(f"{line}\n" for line in lines).encode()
    curves, path = Curves(folder), folder / "metrics.jsonl"
    curves.update()
    for end in [*sorted(cuts), len(content)]:
        path.write_bytes(content[:end])
        curves.update()
    expected = read_metrics(folder).rows
    assert [(step, curves.at(step)) for step in curves.steps] == expected
    for name in curves.names:
        assert curves.series(name, curves.steps) == [row.get(name) for _, row in expected]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n')
    curves = Curves(tmp_path)
    curves.update()
    assert curves.steps_since(1) == [2] and curves.last("a") == 2
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 3}\n')
    curves.update()
    assert curves.steps == [1] and curves.at(1) == {"a": 3.0} and curves.num_replaced == 1
    (tmp_path / "other").write_text('{"step": 4, "a": 1}\n{"step": 5, "a": 2}\n')
    (tmp_path / "other").replace(tmp_path / "metrics.jsonl")  # longer than what was read, and another file
    curves.update()
    assert curves.steps == [4, 5] and curves.num_replaced == 2


def test_steps_that_a_resumed_run_gives_up_are_void(tmp_path: Path) -> None:
    """Who has been told of them is told to ask again, but not if there were none."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n')
    curves = Curves(tmp_path)
    for line, num_replaced in (({"step": 2}, 0), ({"step": 1}, 1)):
        with path.open("a") as file:
            file.write(json.dumps(line | {RESUMED: 1.0}) + "\n")
        curves.update()
        assert curves.num_replaced == num_replaced
    assert curves.steps == [1]
