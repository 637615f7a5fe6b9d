"""`ludus bench`: a table, one JSON object, and refusals that say what would work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.measuring import folder_of


def test_a_measurement_from_end_to_end(tiny_model_folder: Path, ludus: Callable[..., Any]) -> None:
    """Ours in a process of its own: a row, the machine, and with --json one object as the last line."""
    ended = ludus(
        *(
            "bench",
            "sample",
            "--model",
            tiny_model_folder,
            "--requests",
            "2",
            "--new-tokens",
            8,
            "--pairs",
            1,
            "--json",
        ),
        "model.dtype=float32",
    )
    assert ended.code == 0, ended.err
    body = json.loads(ended.last)
    assert set(body) >= {"ours", "peer", "ratio", "ratio_min", "ratio_max", "ceiling_share", "machine", "versions"}
    assert body["ours"] > 0 and body["peer"] is None and "ludus tokens/s" in " ".join(ended.out.split())


def test_the_setting_names_the_model_of_both_sides(tiny_model_folder: Path) -> None:
    """`model.path=FOLDER` and `--model FOLDER` are the same; the setting counts where both are given."""
    folder = str(tiny_model_folder)
    assert folder_of(folder, None) == folder_of("smollm2-135m", ["seed=1", f"model.path={folder}"]) == tiny_model_folder


def test_rewards_are_recorded_and_compared(tiny_model_folder: Path, tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """A run is kept under its name, beside the peer's that was recorded, and drawn."""
    curve = "".join(json.dumps({"step": step, "reward": 0.0}) + "\n" for step in (1, 2))
    (tmp_path / "trl-fp32-seed0.jsonl").write_text(curve)
    where = ("--curves", tmp_path)
    run = ("--quality", "--name", "ours", "--steps", 2, "--seeds", "0", "--vs", "trl", "--model", tiny_model_folder)
    ended = ludus("bench", "step", *run, *where, "--json", "model.dtype=float32", "gconfig.max_new_tokens=4")
    assert ended.code == 0, ended.err
    rows = json.loads(ended.last)["rows"]
    assert [row["curve"] for row in rows] == ["ours", "trl-fp32"] and rows[1]["no_worse"]
    ended = ludus("bench", "curves", "trl-fp32", "ours", *where, "--plot", tmp_path / "curves.png")
    assert ended.code == 0 and (tmp_path / "curves.png").is_file(), ended.err


def test_what_cannot_be_measured_is_refused(tiny_model_folder: Path, tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """Unknown peers, peers that are not set up, wrong numbers and wrong settings end with code 2 at once."""
    model = ("--model", tiny_model_folder)
    refusals = (
        (("sample", "--vs", "sglang"), "known: vllm, transformers"),
        (("sample", "--vs", "vllm", "--peers", tmp_path), "bench/peers.sh"),
        (("sample", "--requests", "1,x"), "'1,x' must be numbers from 1 on"),
        (("step", "--vs", "trl", "--peers", tmp_path), "bench/peers.sh"),
        (("step", "--vs", "trl", "--quality", "--curves", tmp_path), "--record"),
        (("publish", "--vs", "disk"), "known: reload"),
        (("train", "trainer.rows=1"), "unknown key 'trainer.rows'"),
        (("train", "--profile", "trainer.rows=1"), "unknown key 'trainer.rows'"),
    )
    alone = (
        (("overlap", str(tmp_path / "run.yaml"), "--ahead", "-1"), "'-1' must be numbers from 0 on"),
        (("overlap", str(tmp_path / "run.yaml"), "--tool", "2,1"), "--tool 2,1 must be two numbers of seconds"),
    )
    with_model = tuple(((*arguments, *model), said) for arguments, said in refusals)
    for arguments, said in (*with_model, *alone):
        ended = ludus("bench", *arguments)
        assert ended.code == 2 and said in ended.err, arguments


def test_without_a_card_nothing_is_measured_on_one(
    ludus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bench gpu` ends at once with code 2 and one sentence, and writes nothing; its list needs no card."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = tmp_path / "results"
    ended = ludus("bench", "gpu", "--folder", folder)
    assert ended.code == 2 and "no card" in ended.err and "--list" in ended.err and not folder.exists()
    ended = ludus("bench", "gpu", "--list", "--folder", folder)
    assert ended.code == 0 and not folder.exists(), ended.err
    assert ended.out.index("kernels") < ended.out.index("test_draws") < ended.out.index("step-4b")
    ended = ludus("bench", "gpu", "kernel", "--list")
    assert ended.code == 2 and "no part 'kernel'" in ended.err and "kernels, tree" in ended.err
