"""Processes of a run kept alive, with real processes on this machine."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ludus.cluster import supervise
from ludus.cluster.local import LocalLauncher
from ludus.cluster.role_client import RoleClient
from ludus.cluster.supervise import SupervisionPolicy, Supervisor
from ludus.errors import BackendError, UserError
from ludus.processes.cards import Card
from tests.cluster.conftest import is_alive

HEAD = """
import asyncio, sys
from pathlib import Path
from ludus.cluster.base import Role
from ludus.cluster.local import LocalLauncher
from ludus.cluster.registry import Registry
from ludus.cluster.supervise import SupervisionPolicy, Supervisor
from ludus.processes.placement import RoleSettings

async def main(folder, *command):
    with Registry("") as registry:
        role = Role("engine", (*command, "engine", "--head", registry.url), RoleSettings(), count=2)
        async with Supervisor(LocalLauncher(Path(folder)), registry) as supervisor:
            print(*(each.pid for each in await supervisor.start(role, SupervisionPolicy())), flush=True)
            await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


def run(registry, launcher, play, **kwargs):
    async def main():
        async with Supervisor(launcher, registry, **kwargs) as supervisor:
            return await play(supervisor)

    return asyncio.run(main())


def test_roles_start_and_stop_with_the_run(registry, launcher, role):
    """Every process of a role is ready when `start` returns, prints into its log, and has ended after the block, with
    what it started."""
    views = []

    async def play(supervisor):
        return await supervisor.start(role(count=2, cpus=3), SupervisionPolicy({"child": True}))

    found = run(registry, launcher, play, on_change=lambda now: views.append(now))
    assert [each.index for each in found] == [0, 1]
    assert found[0].info["threads"] == "3"
    pids = [each.pid for each in found] + [each.info["child"] for each in found]
    assert not any(map(is_alive, pids))
    assert [view.state for view in views[0]] == ["starting"]
    assert "config 'name: here" in Path(views[0][0].log).read_text()


def test_one_that_was_killed_is_started_again(registry, launcher, role):
    """The death of a ready process is reported, what it left behind is ended, and another takes its place; the run ends
    when that happened too often, with the last lines."""
    told = []
    is_back = asyncio.Event()

    async def lost(name, index):
        told.append(("lost", name, index))

    async def joined(found):
        told.append(("joined", found.name, found.attempt))
        is_back.set()

    async def play(supervisor):
        policy = SupervisionPolicy({"child": True}, on_join=joined, on_lost=lost, max_restarts=1)
        (first,) = await supervisor.start(role(), policy)
        os.kill(first.pid, signal.SIGKILL)
        await is_back.wait()
        assert not is_alive(first.info["child"])
        second = registry.find("engine", 0)
        assert second.pid != first.pid
        os.kill(second.pid, signal.SIGKILL)
        return await supervisor.failed()

    error = run(registry, launcher, play)
    assert told == [("lost", "engine", 0), ("joined", "engine", 1), ("lost", "engine", 0)]
    assert isinstance(error, BackendError)
    assert "signal 9 after 1 restarts" in str(error) and "engine-0 begins" in str(error)


def test_several_that_die_at_once_are_replaced_at_once(registry, launcher, role):
    """Nobody waits for what is done about another one: a node takes all of its processes along."""
    is_back, never = asyncio.Event(), asyncio.Event()

    async def lost(name, index):
        if index == 0:
            await never.wait()

    async def joined(found):
        assert found.index > 0
        is_back.set()

    async def play(supervisor):
        policy = SupervisionPolicy(on_join=joined, on_lost=lost, max_restarts=1)
        for found in await supervisor.start(role(count=2), policy):
            os.kill(found.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            await is_back.wait()

    run(registry, launcher, play)


def test_restarts_long_ago_do_not_count(registry, launcher, role):
    """A process may be started again as often as is allowed within an hour; nobody counts those of a month."""
    joins = asyncio.Queue()

    async def play(supervisor):
        policy = SupervisionPolicy(on_join=joins.put, max_restarts=1, restarts_within_s=0.0)
        (found,) = await supervisor.start(role(), policy)
        for attempt in range(1, 4):
            os.kill(found.pid, signal.SIGKILL)
            found = await joins.get()
            assert found.attempt == attempt
        assert supervisor.failure is None

    run(registry, launcher, play)


def test_one_that_was_replaced_meanwhile_is_not_handed_out(registry, launcher, role, tmp_path):
    """`start` returns the processes as they are once all are ready, also if one died while another was waited for."""
    mark = tmp_path / "replaced"

    async def joined(found):
        mark.touch()

    async def play(supervisor):
        task = {"ends_once": True, "waits_for": str(mark)}
        return await supervisor.start(role(count=2), SupervisionPolicy(task, on_join=joined, max_restarts=1))

    found = run(registry, launcher, play)
    assert [(each.index, each.attempt) for each in found] == [(0, 1), (1, 0)]


def test_one_that_cannot_begin_is_not_tried_again(registry, launcher, role):
    """A process that ends before it was ever ready ends the start, with what it said; exit status 2 is the user's."""

    async def play(supervisor):
        with pytest.raises(UserError, match=r"exit status 2 before it was ready; its (.*\n)+  no such model"):
            await supervisor.start(role(), SupervisionPolicy({"fails": "no such model", "status": 2}, max_restarts=3))

    run(registry, launcher, play)


def test_one_that_was_ready_before_is_tried_again(registry, launcher, role):
    """Its settings were right: what it says is wrong with them, such as no memory for its agent's process, may pass."""
    joins = asyncio.Queue()

    async def play(supervisor):
        task = {"fails": "no memory", "status": 2, "fails_at": 1}
        (first,) = await supervisor.start(role(), SupervisionPolicy(task, on_join=joins.put, max_restarts=2))
        os.kill(first.pid, signal.SIGKILL)
        found = await supervisor.unless_failed(joins.get())
        assert found.attempt == 2

    run(registry, launcher, play)


def test_silence_is_a_loss(registry, launcher, role, monkeypatch):
    """A process that lives and says nothing is ended, also if it ignores requests to end."""
    monkeypatch.setattr(supervise, "SILENCE_S", 0.3)

    async def play(supervisor):
        (found,) = await supervisor.start(role(), SupervisionPolicy({"is_silent": True, "is_deaf": True}))
        error = await supervisor.failed()
        assert not is_alive(found.pid)
        return error

    assert "was not heard of" in str(run(registry, launcher, play))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux tells a process that its parent has ended")
def test_roles_end_with_a_head_that_is_killed(tmp_path, role):
    """Nobody tells them, and they miss no sign of life: two seconds later they are gone."""
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(tmp_path), *role(count=2).command[:2]], stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in head.stdout.readline().split()]
    head.kill()
    head.communicate()
    give_up_at = time.monotonic() + 2
    while any(map(is_alive, pids)) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert len(pids) == 2 and not any(map(is_alive, pids))


def test_sleep_is_no_silence(registry, launcher, role, monkeypatch):
    """When the head itself stood still, its processes are not taken for dead."""
    now = [0.0]
    monkeypatch.setattr("ludus.cluster.clock.time", SimpleNamespace(monotonic=lambda: now[0]))
    key = registry.expect("engine", 0, 0, {})
    with RoleClient(registry.url, key, "engine", 0) as role_client:
        role_client.join()
        now[0] += 3600
        assert registry.silence_s("engine", 0) <= 2.0


def test_the_heads_card_is_its_own(tmp_path, role, monkeypatch):
    """No process is given it, whichever it is; one that has none reserved and computes on cards shares the others in
    turn instead of joining the head on its own."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")

    def given(launcher, settings, count):
        return [launcher._device_env(settings, index).get("CUDA_VISIBLE_DEVICES") for index in range(count)]

    launcher = LocalLauncher(tmp_path, head_card="1")
    assert given(launcher, role(gpus=1), 2) == ["2", "0"]
    with pytest.raises(UserError, match="1, is the head's own, free"):
        launcher._device_env(role(gpus=1), 2)
    engine = replace(role(), cards=1)
    assert given(launcher, engine, 4) == ["2", "0", "2", "0"]  # though others have reserved them: there are no more
    assert given(launcher, replace(role(), cards=2), 2) == ["2,0", "2,0"]
    assert given(launcher, role(), 2) == [None, None]  # of no role that computes on cards
    assert given(launcher, replace(engine, is_on_heads_card=True), 1) == ["1"]  # but for one that shares it in turns
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert given(LocalLauncher(tmp_path, head_card="0"), engine, 2) == [None, None]  # there is no other
    assert given(LocalLauncher(tmp_path), replace(engine, is_on_heads_card=True), 1) == [None]  # the head has none


def test_a_card_has_one_name(tmp_path, role, monkeypatch):
    """However the head was given its cards, a role is given others: by uuid, which no process counts anew."""
    cards = {name: Card(f"GPU-{name}", 80) for name in "abc"}
    monkeypatch.setattr("ludus.cluster.local.find_cards", lambda: tuple(cards.values()))
    launcher = LocalLauncher(tmp_path, head_card="GPU-c")
    assert launcher._device_env(role(gpus=1), 0) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert launcher._device_env(replace(role(), cards=1), 5) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}  # the one left
    assert launcher._device_env(role(gpus=1), 1) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}


def test_devices_are_handed_out(tmp_path, role, monkeypatch, registry):
    """Each process sees devices of its own, from the last one down; too many are refused."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    launcher = LocalLauncher(tmp_path)
    try:
        given = [launcher._device_env(role(gpus=1), index)["CUDA_VISIBLE_DEVICES"] for index in (0, 1, 0)]
        assert given == ["2", "1", "2"]
        with pytest.raises(UserError, match="finds 1 of this machine's 3 free"):
            launcher._device_env(role(gpus=2), 2)
        with pytest.raises(UserError, match="whole number"):
            launcher._device_env(role(gpus=0.5), 3)
    finally:
        launcher.close()
