"""Sessions over HTTP: opened, rewarded, ended and read with the right key, and with no other."""

from __future__ import annotations

from typing import Any

import httpx

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import check_error
from ludus.checks.conformance.case import SESSIONS, case
from ludus.checks.conformance.expect import TEXT
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import MESSAGES


class Opened:
    """A session opened over HTTP."""

    def __init__(self, probe: Probe, body: dict[str, Any]) -> None:
        self.body = body
        self.path = f"/sessions/{body['id']}"
        self.probe = probe.but(root=body["base_url"].removesuffix("/v1"))
        self.messages = probe.but(root=body["anthropic_base_url"], words=MESSAGES)

    async def see(self) -> dict[str, Any]:
        """How it is seen by the administration."""
        return expect.json_object("the session", (await admin(self.probe, "GET", self.path)).text)

    async def reward(self, **fields: Any) -> httpx.Response:
        return await admin(self.probe, "POST", f"{self.path}/rewards", fields)


async def admin(probe: Probe, method: str, path: str, body: Any = None, *, key: str | None = "admin") -> httpx.Response:
    """The answer to a request of the administration, with the admin key if no other is named."""
    key = probe.local.server.admin_key if key == "admin" else key
    return await probe.but(root=probe.local.gateway, key=key).send(method, path, body)


async def opened(probe: Probe, *, is_used: bool = False, **fields: Any) -> Opened:
    """is_used: it has a turn already."""
    answer = await admin(probe, "POST", "/sessions", fields)
    expect.equal(f"status of {answer.text[:120]!r}", answer.status_code, 201)
    session = Opened(probe, expect.json_object("the body", answer.text))
    if is_used:
        await session.probe.ask()
    return session


@case("sessions", "text", ours=SESSIONS)
async def open_one(probe: Probe) -> None:
    """A session that is opened has an id, a key and URLs, and counts its turns."""
    session = await opened(probe, is_used=True, metadata={"customer": "7"})
    expect.parts(session.body, id=TEXT, key=TEXT, base_url=TEXT, anthropic_base_url=TEXT)
    expect.parts(await session.see(), state="open", num_turns=1, metadata={"customer": "7"}, key=None)


@case("sessions", "text", ours=SESSIONS)
async def both_sdks(probe: Probe) -> None:
    """Both SDKs reach a session by its URLs, and are one session."""
    session = await opened(probe)
    for one in (session.probe, session.messages):
        await one.ask()
    expect.parts(await session.see(), num_turns=2)


@case("sessions", "text", ours=SESSIONS)
async def key_alone(probe: Probe) -> None:
    """The key alone names a session."""
    session = await opened(probe)
    await probe.but(key=session.body["key"], root=probe.local.gateway).ask()
    expect.parts(await session.see(), num_turns=1)


@case("sessions", "text", ours=SESSIONS)
async def rewards(probe: Probe) -> None:
    """A turn is rewarded by the id that its client got, the last one without an id."""
    session = await opened(probe)
    first, last = [(await session.probe.ask()).id for _ in range(2)]
    await session.reward(completion_id=first, reward=0.25)
    await session.reward(reward=1)
    expect.parts(await session.see(), rewards={first: 0.25, last: 1.0})


@case("sessions", "text", ours=SESSIONS)
async def reward_message(probe: Probe) -> None:
    """A message's id rewards its turn too."""
    session = await opened(probe)
    await session.reward(completion_id=(await session.messages.ask()).id, reward=0.5)
    expect.equal("rewards", [*(await session.see())["rewards"].values()], [0.5])


@case("sessions", "records", ours=SESSIONS)
async def export(probe: Probe) -> None:
    """What a session exports are its turns, token by token, with their rewards."""
    session = await opened(probe, is_used=True)
    await session.reward(reward=1)
    body = (await admin(probe, "GET", f"{session.path}/export")).json()
    expect.equal("number of interactions", len(body["interactions"]), 1)
    expect.equal("rewards", [*body["session"]["rewards"].values()], [1.0])


@case("sessions", "limits", ours=SESSIONS)
async def ended(probe: Probe) -> None:
    """A session that has ended takes no request, and can still be read."""
    session = await opened(probe, is_used=True)
    await admin(probe, "POST", f"{session.path}/end", {"outcome": "ok"})
    await probe.refused(session.probe.ask(), 401)
    expect.parts(await session.see(), state="ended", outcome="ok")


@case("sessions", "limits", ours=SESSIONS)
async def limits(probe: Probe) -> None:
    """Limits that a session is opened with hold."""
    session = await opened(probe, is_used=True, max_turns=1)
    await probe.refused(session.probe.ask(), code="turn_limit")


@case("sessions", "keys", ours=SESSIONS)
async def admin_key(probe: Probe) -> None:
    """Without the admin key no session is opened or listed."""
    session = await opened(probe)
    for method, body in (("GET", None), ("POST", {})):
        for key, status in (("wrong", 401), (session.body["key"], 403), (None, 401)):
            check_error(await admin(probe, method, "/sessions", body, key=key), status)


@case("sessions", "keys", ours=SESSIONS)
async def other_session(probe: Probe) -> None:
    """A session's key opens nothing of another session, nor shows if there is one."""
    key, other = (await opened(probe)).body["key"], await opened(probe)
    errors = set()
    for path in (other.path, "/sessions/nobody", f"{other.path}/export"):
        answer = await admin(probe, "GET", path, key=key)
        check_error(answer, 403)
        errors.add((answer.json()["error"]["code"], answer.json()["error"]["message"]))
    expect.equal("number of different errors", len(errors), 1)
    check_error(await admin(probe, "POST", f"{other.path}/rewards", {"reward": 1}, key=key), 403)
    expect.parts(await other.see(), rewards={})


@case("sessions", "keys", ours=SESSIONS)
async def own_key(probe: Probe) -> None:
    """A session's key reads and rewards its own."""
    session = await opened(probe, is_used=True)
    answer = await admin(probe, "POST", "/sessions/current/rewards", {"reward": 1}, key=session.body["key"])
    expect.parts(answer, status_code=200)
    expect.equal("rewards", [*(await session.see())["rewards"].values()], [1.0])


@case("sessions", "errors", ours=SESSIONS)
async def wrong_rewards(probe: Probe) -> None:
    """A reward of an unknown turn is a 404, one that is no number a 400."""
    session = await opened(probe, is_used=True)
    check_error(await session.reward(completion_id="chatcmpl-nobody", reward=1), 404)
    for body in ({"reward": "good"}, {"rewrad": 1}):
        check_error(await session.reward(**body), 400)


@case("sessions", "errors", ours=SESSIONS)
async def ids(probe: Probe) -> None:
    """An id that is taken is a 409, and a session that nobody opened a 404."""
    session = await opened(probe)
    check_error(await admin(probe, "POST", "/sessions", {"id": session.body["id"]}), 409)
    check_error(await admin(probe, "GET", "/sessions/nobody"), 404)
