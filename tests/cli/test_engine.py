"""`ludus engine serve` serves tokens until it is interrupted."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.cluster.address import ListenAddress
from ludus.cluster.serving import serving_engine
from ludus.config import Config
from ludus.engines.serving.engine import LudusEngine
from ludus.engines.serving.key_files import found_key
from ludus.text.tokenizer import Tokenizer

KEY = "k" * 20


def test_serves_tokens_to_who_has_the_key(tiny_model_folder: Path) -> None:
    """The command loads a model, prints where it answers, wants the key of its environment, and ends on Ctrl-C."""
    command = [sys.executable, "-m", "ludus", "engine", "serve", str(tiny_model_folder), "model.dtype=float32"]
    server = subprocess.Popen(
        [*command, "engine.kv_bytes=4194304", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LUDUS_ENGINE_KEY": KEY},
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://[\d.:]+", server.stdout.readline() + server.stdout.readline())
        assert found is not None, server.communicate()
        url, asked = f"{found[0]}/inference/v1/generate", {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3}}
        assert httpx.post(url, json=asked).status_code == 401
        answer = httpx.post(url, json=asked, headers={"authorization": f"Bearer {KEY}"}).json()
        assert len(answer["choices"][0]["token_ids"]) <= 3
        server.send_signal(signal.SIGINT)
        assert (server.wait(timeout=30), server.communicate()[1].strip()) == (130, "interrupted")
    finally:
        server.kill()
        server.communicate()


def test_a_key_is_made_that_only_its_user_finds(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key strangers get nothing, not even weights replaced by a page of the web; runs here find the key."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LUDUS_ENGINE_KEY", raising=False)
    config = Config(model={"path": str(tiny_model_folder), "dtype": "float32"}, engine={"kv_bytes": 2**22})

    async def main() -> None:
        async with serving_engine(config, ListenAddress("127.0.0.1", 0, None)) as served:
            assert served.key_file is not None and served.key_file.stat().st_mode & 0o777 == 0o600
            assert served.key_file.parent.stat().st_mode & 0o777 == 0o700
            for path in ("/stats", "/weights/3", "/pause"):
                assert (await asyncio.to_thread(httpx.post, served.url + path)).status_code in (401, 405)
            connect = partial(LudusEngine.connect, served.url, Tokenizer.load(tiny_model_folder))
            await (await asyncio.to_thread(connect)).close()
        assert not served.key_file.exists()
        assert found_key(served.url) is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "lets other machines in, and then the key must be yours: set LUDUS_ENGINE_KEY"),
        (("--api-key", "short"), "5 characters"),
        (("engine.replicas=2",), "start it again on another port"),
        (("engine.kind=server",), "this serves one engine of this process"),
    ],
)
def test_refuses_what_it_cannot_serve(
    tiny_model_folder: Path, ludus: Callable[..., Any], options: tuple[str, ...], said: str
) -> None:
    """Strangers, keys that are guessed, and more than one engine."""
    ended = ludus("engine", "serve", tiny_model_folder, *options)
    assert ended.code == 2 and said in " ".join(ended.err.split())
