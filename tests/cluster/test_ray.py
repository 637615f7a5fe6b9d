"""Roles as actors of a Ray cluster of two nodes, both on this machine."""

import asyncio
import os
import tempfile
import time

import pytest

from ludus.cluster.ray import RayLauncher, RoleHost
from ludus.cluster.supervise import SupervisionPolicy, Supervisor
from ludus.errors import UserError
from ludus.processes.placement import RaySettings
from tests.cluster.conftest import is_alive

pytestmark = [
    pytest.mark.timeout(400),  # an actor begins with a process that loads all of Ray
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """A head with two cards and room for nothing, and two nodes with room for two processes each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    # A node that is lost is noticed within a second: Ray asks every three by itself, and gives it five tries.
    noticing = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 200,
        "health_check_timeout_ms": 2000,
        "health_check_failure_threshold": 2,
    }
    head = {"num_cpus": 0, "num_gpus": 2, "include_dashboard": False, "_system_config": noticing}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture
def ray_launcher(cluster, tmp_path):
    launcher = RayLauncher(tmp_path, RaySettings(address=cluster.address))
    yield launcher
    launcher.close()


def test_an_actor_leaves_nothing_on_its_node(tmp_path, monkeypatch):
    """What a process prints is read where it runs, and its file is gone already, however the actor ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    host = RoleHost(["python", "-c", "print('said')"], {}, str(tmp_path / "not here"))
    try:
        while host.poll(0)[0] is None:
            time.sleep(0.01)
        assert [host.poll(at) for at in (0, 2, 5)] == [(0, b"said\n"), (0, b"id\n"), (0, b"")]
        assert list(tmp_path.iterdir()) == []
    finally:
        host.stop(0)


def test_roles_run_on_the_nodes_and_move_when_one_is_lost(cluster, ray_launcher, registry, role, tmp_path):
    """Two processes of a role are on two nodes and print into the run's folder; the node of one is killed, and it
    comes back on the other."""
    is_back = asyncio.Event()
    told = []

    async def lost(name, index):
        told.append(("lost", index))

    async def joined(found):
        told.append(("joined", found.index))
        is_back.set()

    async def main():
        async with Supervisor(ray_launcher, registry) as supervisor:
            policy = SupervisionPolicy({}, on_join=joined, on_lost=lost, max_restarts=2)
            found = await supervisor.start(role(count=2, cpus=1), policy)
            assert [each.index for each in found] == [0, 1]
            cluster.remove_node(cluster.nodes[0], allow_graceful=False)
            await is_back.wait()
            assert len([1 for what, _ in told if what == "lost"]) == 1
            return found, [registry.find("engine", index) for index in (0, 1)]

    before, after = asyncio.run(main())
    (moved,) = [index for index in (0, 1) if before[index].pid != after[index].pid]
    assert told == [("lost", moved), ("joined", moved)]
    assert not any(is_alive(each.pid) for each in after)
    log = (tmp_path / "roles" / f"engine-{moved}.log").read_text()
    assert f"engine-{moved} begins" in log and "actor of this process is gone" in log


def test_what_no_node_has_is_refused(ray_launcher, role):
    """A role that could never be placed is refused with what the nodes have."""
    with pytest.raises(UserError, match=r"no node of the Ray cluster has: .*CPU"):
        ray_launcher.start(role(cpus=64), 0, {})


def test_a_process_that_cannot_begin_is_told(ray_launcher, registry, role):
    """The last lines of a process on another node are in the message."""

    async def main():
        async with Supervisor(ray_launcher, registry) as supervisor:
            with pytest.raises(UserError, match=r"rollout-0 \(pid .* on .*exit status 2(.*\n)+ .*no such model"):
                await supervisor.start(role("rollout"), SupervisionPolicy({"fails": "no such model", "status": 2}))

    asyncio.run(main())


def test_the_heads_card_is_held(cluster, tmp_path):
    """Ray gives out cards as it likes, and never again the one that the head computes on; at the end it is free."""
    import ray

    launcher = RayLauncher(tmp_path, RaySettings(address=cluster.address), head_card="1")
    try:
        holder = launcher._hold_card("1")
        assert ray.get(holder.cards.remote()) == ["1"]
        assert launcher._hold_card("1") is None  # it is held already
        ray.kill(holder)
        assert launcher._hold_card("7") is None  # Ray has no such card
    finally:
        launcher.close()
