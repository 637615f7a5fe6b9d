"""`ludus doctor` finds what it is asked about, and leaves with the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended

Ludus = Callable[..., Ended]
STRIPS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def verdict(ended: Ended) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
    return found


def test_a_shipped_template(ludus: Ludus) -> None:
    """A template that keeps everything: what is appended is shown, and the exit code is 0."""
    ended = ludus("doctor", "chatml-tools", "--conversations", "5", "--json")
    found = verdict(ended)
    assert ended.code == 0
    assert found["ok"] is True
    assert list(found["counts"]) == ["exact"]
    assert found["forks"] == []
    assert "always exact" in ended.out
    assert "a reply ends with" in ended.out
    assert "{user}" in next(row["appended"] for row in found["transitions"] if row["kind"] == "user after answer")


def test_a_model(ludus: Ludus, tiny_model_folder: Path) -> None:
    """A model's folder: its own template and its own stop tokens."""
    ended = ludus("doctor", str(tiny_model_folder), "--conversations", "5", "--json")
    assert ended.code == 0
    assert verdict(ended)["stops"] == ["<|im_end|>"]


def test_a_template_that_forks(ludus: Ludus, tmp_path: Path) -> None:
    """Exit code 1 with the proof; 0 once the fork is allowed."""
    path = tmp_path / "strips.jinja"
    path.write_text(STRIPS)
    ended = ludus("doctor", str(path), "--conversations", "8", "--json")
    found = verdict(ended)
    assert ended.code == 1
    assert found["ok"] is False
    (fork,) = found["forks"]
    assert (fork["construct"], fork["reason"]) == ("reasoning_stripped", "reasoning_stripped")
    assert [message["role"] for message in fork["messages"]] == ["user", "assistant", "user"]
    assert fork["messages"][1]["reasoning"] == "Hm."
    assert fork["divergence"]["tag"]["text"] == "{% if m.reasoning_content and loop.last %}"
    assert "decided by" in ended.out
    allowed = ludus("doctor", str(path), "--conversations", "8", "--allow", "reasoning_stripped")
    assert allowed.code == 0
    assert "allowed" in allowed.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("chatml-tools", "--allow", "nothing"), "known: reasoning_stripped"),
        (("chatml-tools", "--set", "enable_thinking"), "must have the form key=value"),
        (("chatml-tools", "--template", "chatml-tools"), "Leave it out"),
        (("chatml-tools", "--parser", "none"), "Unknown tool_parser"),
        (("{path}",), "no Jinja tag"),
        (("no-such-model",), "no-such-model"),
    ],
)
def test_usage(ludus: Ludus, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """What cannot work is said, with what would: exit code 2."""
    path = tmp_path / "words.txt"
    path.write_text("no template")
    ended = ludus("doctor", *(argument.format(path=path) for argument in arguments), "--conversations", "1")
    assert ended.code == 2
    assert words in " ".join(ended.err.split())


def test_this_machine(ludus: Ludus) -> None:
    """Processor, kernels, threads and type are shown; the last line has them all for programs."""
    ended = ludus("doctor", "machine", "--json")
    found = verdict(ended)
    assert ended.code == 0
    assert found["dtype"] in ("bfloat16", "float32") and found["threads"] >= 1
    assert found["machine"]["cores"] >= found["machine"]["workers"] >= 1
    assert set(found["kernels"]) >= {"linear", "tree"}
    assert all(word in ended.out for word in ("processor", "compiler", "threads", "dtype", "demo"))
    demo = found["demo"]
    assert demo["seconds"] == pytest.approx(demo["train_s"] + demo["sample_s"]) and 0 < demo["steps"] <= 80
