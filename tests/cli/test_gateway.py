"""`ludus gateway` serves a model until it is interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.runs.store import RunStore
from ludus.text.tokenizer import Tokenizer
from tests.engines.vllm.vllm_server import StandIn, serving


def test_curl_gets_the_same_text_streamed_and_not(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Any key works, the same seed gives the same text both ways; Ctrl-C ends it, and what was said is in a run."""
    command = [sys.executable, "-m", "ludus", "gateway", str(tiny_model_folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+/v1", server.stdout.readline() + server.stdout.readline())
        assert found is not None
        url, body = (
            f"{found[0]}/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}], "seed": 3, "max_tokens": 8},
        )
        whole = httpx.post(url, json=body, headers={"authorization": "Bearer any"}).json()
        curl = ["curl", "-sN", url, "-d", json.dumps({**body, "stream": True})]
        streamed = subprocess.run(curl, capture_output=True, text=True, check=True).stdout
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        assert text == whole["choices"][0]["message"]["content"] != ""
        server.send_signal(signal.SIGINT)
        said, errors = server.communicate(timeout=30)
        assert (server.returncode, errors.strip()) == (130, "interrupted")
        assert "2 requests, 2 of 2 messages new" in said
        assert "recorded 2 sessions, 2 turns, 16 sampled tokens" in said
        with RunStore.open(tmp_path / "runs" / "gateway") as run:
            assert {turn.reply.content for one in run.episodes() for turn in one.session.turns} == {text}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "lets other machines in, and then the key must be yours: set LUDUS_ADMIN_KEY"),
        (("--host", "0.0.0.0", "--admin-key", "short"), "5 characters; 16 or more are hard to guess"),
    ],
)
def test_other_machines_need_a_key(tiny_model_folder: Path, ludus: Any, options: tuple[str, ...], message: str) -> None:
    """Nothing is opened to other machines without an admin key that is worth the name."""
    ended = ludus("gateway", tiny_model_folder, *options)
    assert ended.code == 2 and message in " ".join(ended.err.split())


def test_a_vllm_server_is_recorded_without_torch(tokenizer_folder: Path, tmp_path: Path) -> None:
    """`--engine vllm` samples over a server's interface: a folder with a tokenizer is enough, torch is not loaded. It
    records into a folder again whose run.db is gone."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    blocked = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None; "
    run = f"{blocked}from ludus.cli.app import run; sys.exit(run(sys.argv[1:]))"
    with serving(StandIn(lambda _: "Blue.", tokenizer)) as url:
        command = [sys.executable, "-c", run, "gateway", str(tokenizer_folder), "--engine", "vllm", "--url", url]
        command += ["--port", "0", "--into", str(tmp_path / "run")]
        for _ in range(2):
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                assert server.stdout is not None
                said = iter(server.stdout.readline, "")
                found = next((found for line in said if (found := re.search(r"http://\S+/v1", line))), None)
                assert found is not None, server.communicate()
                body = {"messages": [{"role": "user", "content": "Which colour?"}], "logprobs": True}
                answer = httpx.post(f"{found[0]}/chat/completions", json=body).json()
                assert answer["choices"][0]["message"]["content"] == "Blue."
                assert len(answer["choices"][0]["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
                server.send_signal(signal.SIGINT)
                assert "recorded 1 sessions, 1 turns" in server.communicate(timeout=30)[0]
            finally:
                server.kill()
                server.wait()
                server.stdout.close()
            (tmp_path / "run" / "run.db").unlink()


def test_a_vllm_server_needs_its_url(tokenizer_folder: Path, ludus: Callable[..., Any]) -> None:
    """The one without the other is refused with both."""
    for arguments in (("--engine", "vllm"), ("--url", "http://localhost:1")):
        ended = ludus("gateway", tokenizer_folder, *arguments)
        assert ended.code == 2 and "--engine vllm --url http://localhost:8000" in ended.err
