"""The gateway of this environment, LiteLLM's proxy or rllm-model-gateway: requests a second, added latency.

Gets its work as a JSON file and prints one JSON object. The client is the same as in front of Ludus; behind the gateway
stands a server that answers at once. What the gateway adds is the client's time through it less the client's time
without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120
CHAT = "/v1/chat/completions"
BIN = Path(sys.executable).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    work = json.loads(parser.parse_args().work.read_text())
    installed = {each.metadata["Name"] for each in distributions()}
    name = "litellm" if "litellm" in installed else "rllm-model-gateway"
    with tempfile.TemporaryDirectory() as folder, upstream(work) as engine_port:
        direct = ask({**work, "phases": work["phases"][:3]}, engine_port, [CHAT], folder)
        with gateway(name, engine_port, Path(folder)) as (port, paths):
            _warm, alone, stream, crowd = ask(work, port, paths, folder)
    figures = {
        "requests_per_s": crowd["requests"] / crowd["seconds"],
        "p50_s": alone["p50_s"] - direct[1]["p50_s"],
        "p99_s": alone["p99_s"] - direct[1]["p50_s"],
        "first_token_s": stream["first_token_p50_s"] - direct[2]["first_token_p50_s"],
    }
    print(json.dumps({**figures, "versions": {name: version(name)}}))


@contextlib.contextmanager
def upstream(work: Mapping[str, Any]) -> Iterator[int]:
    """The port of the engine's stand-in."""
    process = subprocess.Popen([*work["upstream"], work["reply"]], stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        end(process)


@contextlib.contextmanager
def gateway(name: str, engine_port: int, folder: Path) -> Iterator[tuple[int, list[str]]]:
    """The port of the gateway, once it answers, and a path for each session it knows."""
    engine_url, port = f"http://127.0.0.1:{engine_port}/v1", free_port()
    if name == "litellm":
        config = folder / "litellm.json"  # JSON is YAML
        model = {"model": "openai/default", "api_base": engine_url, "api_key": "none"}
        models = [{"model_name": "default", "litellm_params": model}]
        # without a key it asks no database and checks nothing, which is the fastest it can be
        unguarded = {"dangerously_permit_weak_or_unset_master_key": True}
        config.write_text(json.dumps({"model_list": models, "general_settings": unguarded}))
        command = [str(BIN / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        alive, paths = "/health/liveliness", [CHAT]
    else:
        database = ["--db-path", str(folder / "traces.db")]
        command = [sys.executable, "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--worker", engine_url, "--log-level", "warning", *database]
        alive, paths = "/health", [f"/sessions/session-{idx}{CHAT}" for idx in range(10_000)]
    with (folder / "gateway.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(f"http://127.0.0.1:{port}{alive}", process, Path(log.name))
            yield port, paths
        finally:
            end(process)


def wait_for(url: str, process: subprocess.Popen[Any], log: Path) -> None:
    for _ in range(START_TIMEOUT_S * 5):
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(url, timeout=5).read()
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    sys.exit(f"the gateway did not answer at {url}; its last words:\n{log.read_text()[-2000:]}")


def ask(work: Mapping[str, Any], port: int, paths: list[str], folder: str) -> list[Mapping[str, float]]:
    """What the client measured in each phase."""
    job = Path(folder) / "job.json"
    job.write_text(json.dumps({**work, "host": "127.0.0.1", "port": port, "paths": paths}))
    done = subprocess.run([*work["client"], str(job)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["phases"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
