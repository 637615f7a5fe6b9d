"""The engine contract against a real vLLM server: `make test-engines`; not among the tests that need nothing else.

LUDUS_VLLM=.peers/vllm/bin/vllm   the command that serves; bench/peers.sh sets it up
LUDUS_MODEL=…                     folder of the model
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from ludus.engines.base import Engine
from ludus.engines.http.vllm import VllmEngine
from ludus.model.resolve import resolve_model
from ludus.record.recorder import Recorder
from ludus.text.chat import ChatText
from ludus.text.tokenizer import Tokenizer
from ludus.types import ChatRequest, Message, Sampling
from tests.engines.contract import CHECKS, call, check_grammar, check_logprobs_are_those_of_the_tokens

START_S = 300.0  # the first start compiles
BF16_TOLERANCE = 0.2
"""Between a prompt scored at once and the same tokens sampled one by one, in bf16."""
FLAGS = (
    *("--enable-scale-out", "--logprobs-mode", "processed_logprobs"),  # masks need vLLM's newer runner, and a card
    *("--structured-outputs-config", '{"backend": "guidance"}'),
    *("--enable-prompt-tokens-details", "--max-model-len", "256", "--max-num-seqs", "16", "--dtype", "bfloat16"),
)
# Weights are not published; the suite's grammar is spelled in the ids of the tests' own small tokenizer.
KEPT = [check for check in CHECKS if not check.__name__.startswith("check_publish") and check is not check_grammar]


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model(os.environ.get("LUDUS_MODEL", "smollm2-135m"))


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # by its module: the command `vllm` asks for the version of a package that the build for processors does not have
    server = [os.environ["LUDUS_VLLM"], "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(folder)]
    command = [*server, "--host", "127.0.0.1", "--port", str(port), *FLAGS]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM did not start: {log.read_text()[-3000:]}")


@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.__name__)
@pytest.mark.timeout(START_S * 2)
def test_keeps_the_engine_contract(check: Callable[..., None], url: str, folder: Path) -> None:
    """Every point of the contract but the publishing of weights."""
    tokenizer = Tokenizer.load(folder)

    def make_engine() -> Engine:
        return VllmEngine.connect(url, tokenizer)

    if check is check_logprobs_are_those_of_the_tokens:
        check = partial(check, tolerance=BF16_TOLERANCE)
    check(make_engine)


def test_logprobs_are_those_of_the_narrowed_distribution(url: str, folder: Path) -> None:
    """Among three kept tokens the probabilities sum to 1; which they were is unknown without masks."""

    async def scenario() -> None:
        engine = VllmEngine.connect(url, Tokenizer.load(folder))
        asked = Sampling(seed=5, top_k=3, top_logprobs=3, temperature=0.7, max_new_tokens=8)
        sampled = await engine.generate(call(sampling=asked))
        await engine.close()
        assert sampled.kept_ids == (None,) * len(sampled.token_ids)
        for token, logprob, tops in zip(sampled.token_ids, sampled.logprobs, sampled.top_logprobs, strict=True):
            assert dict(tops)[token] == logprob
            assert sum(math.exp(value) for _, value in tops) == pytest.approx(1.0, abs=1e-3)

    asyncio.run(scenario())


def test_a_session_goes_on_with_what_was_sampled(url: str, folder: Path) -> None:
    """Two turns through the recorder: the second prompt begins with the tokens of the first, and nothing forks."""

    async def scenario() -> None:
        text = ChatText.load(folder)
        engine = VllmEngine.connect(url, text.tokenizer)
        session = Recorder(engine, text).open(session_id="real")
        asked = Sampling(seed=1, max_new_tokens=12)
        history = (Message("user", "Name a colour."),)
        (first,) = await session.complete(ChatRequest(history, sampling=asked))
        (second,) = await session.complete(
            ChatRequest((*history, first.reply, Message("user", "Another one.")), sampling=asked)
        )
        record = await session.aclose("done")
        await engine.close()
        assert (second.prefix, second.fork) == (first.id, None)
        assert record.path_ids(second.node)[: len(record.path_ids(first.node))] == record.path_ids(first.node)

    asyncio.run(scenario())
