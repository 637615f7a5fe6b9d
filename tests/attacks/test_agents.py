"""What an agent that is after the run finds and what it opens: environments, processes above it, keys on every URL."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ludus.api.agent import agent_variables
from ludus.cluster.registry import Registry
from ludus.config import Config
from ludus.processes.environment import forget, handed_on
from ludus.processes.pool import WorkerPool
from ludus.rollout.subproc import SubprocessAgentAdapter
from tests.rollout.agents import answer

SECRETS = ("LUDUS_HEAD_KEY", "LUDUS_ENGINE_KEY", "LUDUS_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
OPERATIONS = [
    *(("GET", "/config?role=engine&index=0"), ("GET", "/config?role=rollout&index=0"), ("GET", "/config")),
    *(("GET", "/config?role=engine&index=0&role=rollout&index=1"), ("GET", "/roles"), ("POST", "/stop")),
    *(("POST", "/roles/engine/0"), ("PUT", "/roles/engine/0/beat"), ("POST", "/roles/rollout/0")),
    *(("PUT", "/roles/rollout/0/beat"), ("POST", "/serve/weights/update"), ("GET", "/serve/rollout/../stop")),
    *(("POST", "//stop"), ("POST", "/stop/"), ("GET", "/roles/rollout/1/../../engine/0")),
]
OF_PROCESSES = ("/config?role=engine&index=0", "/roles/engine/0", "/serve/rollout/take")


def dump() -> str:
    """All that an agent's process has in its environment, its variables' first text and its descriptors' names."""
    return repr(dict(os.environ)) + Path("/proc/self/environ").read_text()


def test_an_agents_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In subproc mode and in workers; what its user names for it is there."""
    for name in SECRETS:
        monkeypatch.setenv(name, f"secret-{name}")
    monkeypatch.setenv("SEARCH_KEY", "for agents")
    with WorkerPool(1) as plain, WorkerPool(1, env=handed_on(["SEARCH_KEY"])) as named:
        assert "secret-" not in plain.call_blocking(dump) and "for agents" not in plain.call_blocking(dump)
        assert "secret-" not in named.call_blocking(dump) and "for agents" in named.call_blocking(dump)
    agent_adapter = SubprocessAgentAdapter(answer, max_workers=1, variables=("SEARCH_KEY",))
    try:
        found = agent_adapter._pool.call_blocking(dump)
    finally:
        asyncio.run(agent_adapter.close())
    assert "secret-" not in found and "for agents" in found and os.environ["PATH"] in found


def test_what_an_agent_is_given_is_named() -> None:
    """By a setting, as the key of an actor that it asks, or for the role that it plays in."""
    actors = {"user": {"model": "openai/o3"}, "judge": {"model": "m", "base_url": "http://h", "api_key_env": "JUDGE"}}
    agent = {"mode": "subproc", "env": ["SEARCH_KEY"]}
    config = Config(rollout={"agent": agent, "actors": actors}, scheduler={"rollout": {"env": {"PROXY": "p"}}})
    assert agent_variables(config) == ("SEARCH_KEY", "OPENAI_API_KEY", "JUDGE", "PROXY")


def test_a_key_that_was_read_is_in_no_environment() -> None:
    """Neither for a child nor for one who looks at the process, root included."""
    code = (
        "import os, subprocess, sys\nfrom ludus.processes.environment import forget\n"
        "assert os.environ['LUDUS_HEAD_KEY'] == 'the-key'\nforget('LUDUS_HEAD_KEY'); forget('LUDUS_HEAD_KEY')\n"
        "look = 'import os; print(open(f\"/proc/{os.getppid()}/environ\").read(), dict(os.environ))'\n"
        "print(subprocess.run([sys.executable, '-c', look], capture_output=True, text=True).stdout)\n"
    )
    env = {**os.environ, "LUDUS_HEAD_KEY": "the-key"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "PATH=" in done.stdout and "the-key" not in done.stdout
    forget("LUDUS_NO_SUCH_VARIABLE")


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_workers_key_opens_nothing_of_others(method: str, path: str) -> None:
    """Not the engine's key, which would load weights; no list, no end of the run, no other worker."""
    stopped: list[bool] = []
    with Registry("name: run", on_stop=lambda: stopped.append(True)) as registry:
        registry.expect("engine", 0, 0, {"key": "the-engines"})
        registry.expect("rollout", 0, 0, {})
        key = registry.expect("rollout", 1, 0, {})
        with httpx.Client(base_url=registry.url, headers={"authorization": f"Bearer {key}"}) as http:
            refused = http.request(method, path, **({} if method == "GET" else {"json": {"attempt": 0}}))
            assert refused.status_code in (403, 404, 405) and "the-engines" not in refused.text
            assert http.get("/config", params={"role": "rollout", "index": 1}).status_code == 200
    assert not stopped


@pytest.mark.parametrize("path", OF_PROCESSES)
def test_the_runs_key_opens_no_process(path: str) -> None:
    """It lies in the run's folder, for `ludus stop`: who reads it learns no key of an engine and plays no worker."""
    with Registry("name: run") as registry:
        registry.expect("engine", 0, 0, {"key": "the-engines"})
        with httpx.Client(base_url=registry.url, headers={"authorization": f"Bearer {registry.key}"}) as http:
            refused = http.request("GET" if "config" in path else "POST", path, json={})
            assert refused.status_code == 403 and "the-engines" not in refused.text
            assert http.get("/roles").status_code == 200
