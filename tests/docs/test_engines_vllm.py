"""Every example of docs/engines-vllm.md runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.text.tokenizer import Tokenizer
from tests.docs.pages import blocks, run_block
from tests.engines.vllm.vllm_server import StandIn, serving


def test_every_example_runs(tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a server that answers in one word."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    with serving(StandIn(lambda _: "blue", tokenizer)) as url:
        for code, printed in blocks("engines-vllm.md"):
            run_block(code, {"url": url, "tokenizer": tokenizer})
            assert printed is None or capsys.readouterr().out == printed
