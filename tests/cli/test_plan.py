"""`ludus plan` on cards that are given: the table, the keys, one line of JSON, and a refusal."""

import json
from pathlib import Path

SHAPES = Path(__file__).parents[2] / "bench" / "shapes"


def model(tmp_path, name="qwen3-4b"):
    (tmp_path / "config.json").write_text((SHAPES / f"{name}.json").read_text())
    (tmp_path / "tokenizer.json").write_text("{}")
    return f"model.path={tmp_path}"


def test_memory_is_shown_by_part(tmp_path, ludus):
    """For each kind of card, with the sum and the card's size; then the keys to set."""
    ended = ludus("plan", model(tmp_path), "--cards", "8x80")
    said = ended.out
    assert ended.code == 0, ended.err
    for part in ("masters, fp32", "gathered from other ranks", "pages of keys and values", "of 80.00"):
        assert part in said, said
    assert "engine.replicas=6" in said
    assert "8 of 8 cards of 80.0 GB in use" in said


def test_programs_read_one_line(tmp_path, ludus):
    """All of the plan, and the keys by name."""
    ended = ludus("plan", model(tmp_path), "--cards", "1x80", "--json")
    assert ended.code == 0, ended.err
    body = json.loads(ended.out)
    assert body["cards"] == {"count": 1, "num_bytes": 80_000_000_000}
    assert body["settings"]["trainer.optimizer.moments"] == "bf16"
    assert sum(body["uses"][0]["parts"].values()) <= 80_000_000_000


def test_a_run_that_does_not_fit_is_refused(tmp_path, ludus):
    """Exit code 2, with the nearest that does."""
    ended = ludus("plan", model(tmp_path), "--cards", "1x24")
    assert ended.code == 2 and "model.lora.rank=16" in ended.err


def test_a_card_that_two_have_in_turns_is_one(tmp_path, ludus):
    """A column for each turn, and one card in use."""
    ended = ludus("plan", model(tmp_path), "engine.kind=vllm", "engine.placement=shared", "--cards", "1x80")
    assert ended.code == 0, ended.err
    for part in ("1 card: trains", "in its turn: samples", "vLLM asleep", "1 of 1 card of 80.0 GB in use"):
        assert part in ended.out, ended.out


def test_what_the_machines_memory_holds_is_shown(tmp_path, ludus):
    """With the key that moves it there, where nothing fits without."""
    ended = ludus("plan", model(tmp_path), "--cards", "1x40")
    assert ended.code == 0, ended.err
    assert "trainer.offload=optimizer" in ended.out and "48.27 GB of the machine's" in ended.out
    assert "masters" not in ended.out
