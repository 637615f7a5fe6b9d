"""The head's list of its processes, asked over HTTP."""

import asyncio
import threading

import httpx
import pytest
from starlette.responses import Response

from ludus.cluster.base import KEY_VARIABLE
from ludus.cluster.registry import Registry
from ludus.cluster.role_client import RoleClient
from ludus.errors import BackendError, UserError


def client(registry, key=None):
    return httpx.Client(base_url=registry.url, headers={"authorization": f"Bearer {key or registry.key}"})


def test_a_member_is_briefed_and_found(registry):
    """A process learns the configuration and its task, and the head learns its address."""
    key = registry.expect("engine", 0, 0, {"port": 7})
    with RoleClient.of_environment(registry.url, "engine", 0, {KEY_VARIABLE: key}) as role_client:
        _check_briefing(registry, role_client)


def _check_briefing(registry, role_client):
    role_spec = role_client.role_spec()
    assert (role_spec.config, role_spec.task) == ("name: here\n", {"port": 7})
    assert registry.find("engine", 0) is None
    role_client.join(f"http://{role_client.address}:7", {"model": "m"})
    found = asyncio.run(registry.wait("engine", 0))
    assert (found.url, found.info, found.attempt) == ("http://127.0.0.1:7", {"model": "m"}, 0)
    with client(registry) as http:
        assert http.get("/roles").json()["roles"][0]["url"] == found.url


def test_everything_needs_the_key(registry):
    """No route answers to another key than the run's."""
    registry.expect("engine", 0, 0, {})
    with client(registry, "somebody-elses-key-0123456789") as http:
        for method, path in (
            ("GET", "/config"),
            ("GET", "/roles"),
            ("POST", "/roles/engine/0"),
            ("PUT", "/roles/engine/0/beat"),
            ("POST", "/stop"),
            ("GET", "/serve/rollout/next"),
        ):
            assert http.request(method, path).status_code == 401, path


def test_an_earlier_start_is_told_to_end(registry):
    """A process that was given up and comes back is refused, and so are its signs of life."""
    earlier = registry.expect("engine", 0, 0, {})
    later = registry.expect("engine", 0, 1, {})
    with (
        RoleClient(registry.url, earlier, "engine", 0, attempt=0) as old,
        pytest.raises(BackendError, match="key of the run, or of a process"),
    ):
        old.join()
    with RoleClient(registry.url, later, "engine", 0, attempt=1) as new, client(registry, later) as http:
        new.join()
        assert registry.find("engine", 0).attempt == 1
        assert http.put("/roles/engine/0/beat", json={"attempt": 0}).status_code == 409
        assert http.put("/roles/engine/0/beat", json={"attempt": 1}).status_code == 204


def test_unknown_processes_and_bodies_are_refused(registry):
    """What the run did not start gets no task; a body with other keys is refused by name."""
    key = registry.expect("engine", 0, 0, {})
    with RoleClient(registry.url, key, "engine", 3) as role_client, pytest.raises(UserError, match="engine-3"):
        role_client.role_spec()
    with pytest.raises(UserError, match="LUDUS_HEAD_KEY"):
        RoleClient.of_environment(registry.url, "engine", 0, {})
    with client(registry, key) as http:
        refused = http.post("/roles/engine/0", json={"attempt": 0, "url": "", "pid": 1, "host": "", "colour": 1})
        assert refused.status_code == 400 and "colour" in refused.text


def test_waiting_ends(registry):
    """Who waits for a process is told after the time given, or when the registry ends."""
    with pytest.raises(BackendError, match="not ready within"):
        asyncio.run(registry.wait("engine", 0, timeout_s=0.01))

    async def wait_longer():
        with Registry("") as own:
            waiting = asyncio.create_task(own.wait("engine", 0))
            await asyncio.sleep(0)
        with pytest.raises(BackendError, match="ended before"):
            await waiting

    asyncio.run(wait_longer())


def test_a_request_to_stop_reaches_the_run():
    """`POST /stop` is passed on."""
    asked = []
    with Registry("", on_stop=lambda: asked.append(True)) as registry, client(registry) as http:
        assert http.post("/stop").status_code == 202
    assert asked == [True]


@pytest.mark.parametrize("status", [408, 413, 429, 500, 503])
def test_a_head_that_answers_with_an_error_once_ends_nobody(registry, monkeypatch, status):
    """A beat that the head could not take is one that was missed; a process ends after several in a row."""
    monkeypatch.setattr("ludus.cluster.role_client.HEARTBEAT_S", 0.01)
    answers, was_lost = [status, status, 204, *[status] * 4, 204], threading.Event()
    answered = threading.Event()

    async def refuse(self):
        if len(answers) == 1:
            answered.set()
        return Response(status_code=answers.pop(0) if len(answers) > 1 else answers[0])

    monkeypatch.setattr(Registry, "_heartbeat", refuse)
    with Registry("") as own:
        key = own.expect("engine", 0, 0, {})
        with RoleClient(own.url, key, "engine", 0) as role_client:
            role_client.join(on_head_lost=was_lost.set)
            assert answered.wait(10)
            assert not was_lost.is_set()
            answers[:] = [status]
            assert was_lost.wait(10)


def test_a_process_joins_a_head_that_could_not_answer_at_first(registry, monkeypatch):
    """Its start is not lost by one answer that was: it asks again, and gives up where nobody ever answers."""
    monkeypatch.setattr("ludus.cluster.role_client.HEARTBEAT_S", 0.01)
    key, ask, failing = registry.expect("engine", 0, 0, {"port": 7}), RoleClient._ask, [500, None, 503, 500]

    def fail_sometimes(self, method, path, **options):
        if not failing:
            return ask(self, method, path, **options)
        status = failing.pop()
        if status is None:
            raise BackendError("the head cannot be reached")
        return httpx.Response(status)

    monkeypatch.setattr(RoleClient, "_ask", fail_sometimes)
    with RoleClient(registry.url, key, "engine", 0) as role_client:
        assert role_client.role_spec().task == {"port": 7}
        failing[:] = [500, None]
        role_client.join()
    assert registry.find("engine", 0) is not None
    monkeypatch.undo()
    monkeypatch.setattr("ludus.cluster.role_client.HEARTBEAT_S", 0.01)
    with RoleClient("http://127.0.0.1:9", key, "engine", 0) as nobody, pytest.raises(BackendError, match="reached"):
        nobody.role_spec()


def test_a_head_that_is_gone_is_noticed(registry, monkeypatch):
    """A member whose beats reach nobody calls for its end; one that was forgotten does so at once."""
    monkeypatch.setattr("ludus.cluster.role_client.HEARTBEAT_S", 0.01)
    lost = asyncio.Queue()

    async def notice():
        loop = asyncio.get_running_loop()
        for end in (lambda: registry.forget("engine", 0), lambda: registry.__exit__()):
            key = registry.expect("engine", 0, 0, {})
            with RoleClient(registry.url, key, "engine", 0) as role_client:
                role_client.join(on_head_lost=lambda: loop.call_soon_threadsafe(lost.put_nowait, True))
                end()
                assert await lost.get()

    asyncio.run(notice())
