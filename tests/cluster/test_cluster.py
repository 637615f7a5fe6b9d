"""Who may say in a run's folder which processes it has."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch

from ludus.cluster import cluster as module
from ludus.cluster.cluster import head_view, open_cluster
from ludus.cluster.status import RunStatus, clear_status, is_free, read_status, write_status
from ludus.cluster.supervise import SupervisionPolicy
from ludus.config import Config
from ludus.errors import UserError
from ludus.processes.cards import Card


@pytest.fixture
def config(tmp_path):
    return Config(name="t", run_root=str(tmp_path))


@asynccontextmanager
async def beside(config):
    """An evaluation of the same name, with a process that ends before it has said anything."""
    async with open_cluster(config, is_run=False) as cluster:
        await cluster.begin("engine", 1, SupervisionPolicy())
        yield cluster


def test_the_heads_card_has_the_drivers_name(config, monkeypatch):
    """Whatever number CUDA gives it, so that no other process is given it under another."""
    monkeypatch.setattr(module, "find_cards", lambda: (Card("GPU-a", 80), Card("GPU-b", 80)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid="ba"[number]))
    for device, name in (("cuda:0", "GPU-b"), ("cuda:1", "GPU-a"), ("cpu", None)):
        model = config.model.model_copy(update={"device": device})
        assert module._head_card(config.model_copy(update={"model": model})) == name


def test_what_plays_beside_a_run_leaves_its_folder_alone(config):
    """An evaluation of a run's name has processes, of which the run's folder says nothing, before, during and after."""

    async def main():
        async with open_cluster(config) as training:
            training.announce()
            run_status = read_status(config.folder)
            async with beside(config):
                assert read_status(config.folder) == run_status
            assert read_status(config.folder) == run_status
            assert [path.name for path in config.folder.iterdir()] == ["roles.json"]
        assert read_status(config.folder) is None
        async with beside(config):
            assert read_status(config.folder) is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("overrides", "is_said"),
    [
        (["scheduler.type=ray"], True),
        (["scheduler.type=ray", "engine.kind=server", "engine.urls=[http://a:1]"], True),
        (["scheduler.type=ray", "engine.kind=server"], False),
        (["scheduler.type=ray", "trainer.ranks=2"], False),
        (["scheduler.type=ray", "rollout.agent.mode=subproc", "rollout.agent.workers=1"], False),
        ([], False),
    ],
)
def test_a_cluster_without_anything_to_place_is_told(
    overrides: list[str], is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray is asked for, and all runs in this process."""

    async def opened() -> None:
        async with open_cluster(Config.load(None, overrides), is_run=False):
            pass

    asyncio.run(opened())
    assert ("scheduler.type=ray has nothing to place" in caplog.text) == is_said


def test_a_run_that_starts_shows_its_processes(config):
    """The processes of a run are in its status before it is announced; that of another head is left until then."""
    other = RunStatus(replace(head_view(config, 0.0), pid=1, host="elsewhere"), [])

    async def main():
        async with open_cluster(config) as cluster:
            await cluster.begin("engine", 1, SupervisionPolicy())
            run_status = read_status(config.folder)
            assert run_status is not None and [role.state for role in run_status.roles] == ["starting"]
            write_status(config.folder, other)
            await cluster.begin("rollout", 1, SupervisionPolicy())
            assert read_status(config.folder) == other
            cluster.announce()
            run_status = read_status(config.folder)
            assert run_status is not None and len(run_status.roles) == 2
        assert read_status(config.folder) is None

    asyncio.run(main())


def test_a_stop_while_the_run_starts_is_not_forgotten(config):
    """Who begins to listen for the end after it was asked for is told at once."""
    asked = []

    async def main():
        async with open_cluster(config) as cluster:
            registry = cluster.registry
            headers = {"authorization": f"Bearer {registry.key}"}
            told = await asyncio.to_thread(httpx.post, f"{registry.url}/stop", headers=headers, trust_env=False)
            assert told.status_code == 202
            cluster.on_end(lambda: asked.append("end"))

    asyncio.run(main())
    assert asked == ["end"]


def test_the_status_of_another_head_is_not_cleared(config):
    """Whoever ends clears its own status alone."""
    other = RunStatus(replace(head_view(config, 0.0), pid=1, host="elsewhere"), [])
    write_status(config.folder, other)
    clear_status(config.folder)
    assert read_status(config.folder) == other


HEAD = '{"head": {"pid": %s, "host": "a", "scheduler": "local", "job": null, "url": "", "key": "", "started_at": %s}}'
NO_STATUS = [b"", b"{", b'{"head": {}}', b"[1]", b"\xff\xfe", b"[" * 100_000]
OF_NOBODY = [(HEAD % each).encode() for each in (("-1", "0.0"), ("0", "0.0"), ('"1"', "0.0"), ("1", '"now"'))]


@pytest.mark.parametrize("content", [*NO_STATUS, *OF_NOBODY])
def test_a_damaged_status_is_named_and_stands_in_nobodys_way(content: bytes, tmp_path: Path) -> None:
    """Who asks is told what is not known; the next head writes its own over it."""
    (tmp_path / "roles.json").write_bytes(content)
    with pytest.raises(UserError, match=r"roles.json is damaged: which processes the run has is not known"):
        read_status(tmp_path)
    assert is_free(tmp_path)
    clear_status(tmp_path)
    assert not (tmp_path / "roles.json").exists()
