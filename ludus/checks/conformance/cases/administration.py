"""Sessions over HTTP: opened, rewarded, ended and read by whoever has the right key, and by nobody else."""

from __future__ import annotations

from typing import Any

import httpx

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import SESSIONS, case
from ludus.checks.conformance.cases.asks import check_error
from ludus.checks.conformance.probe import Probe


async def ask(probe: Probe, method: str, path: str, body: Any = None, *, key: str | None = None) -> httpx.Response:
    """The answer to a request of the administration. key: None sends the admin key."""
    key = probe.local.admin_key if key is None else key
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await probe.request(method, f"{probe.local.gateway}{path}", body, headers)


async def opened(probe: Probe, **fields: Any) -> dict[str, Any]:
    """A session opened over HTTP."""
    answer = await ask(probe, "POST", "/sessions", fields)
    expect.equal(f"status of {answer.text[:120]!r}", answer.status_code, 201)
    return expect.json_object("the body", answer.text)


async def chat_in(probe: Probe, session: dict[str, Any]) -> Any:
    """A chat completion in a session opened over HTTP."""
    client, _ = probe.with_key("DUMMY", root=session["base_url"].removesuffix("/v1"))
    return await client.chat.completions.create(**probe.chat_fields())


async def view(probe: Probe, session: dict[str, Any]) -> dict[str, Any]:
    return expect.json_object("the session", (await ask(probe, "GET", f"/sessions/{session['id']}")).text)


@case("sessions", "text", ours=SESSIONS)
async def open_one(probe: Probe) -> None:
    """A session that is opened has an id, a key and URLs, and counts its turns."""
    session = await opened(probe, metadata={"customer": "7"})
    for name in ("id", "key", "base_url", "anthropic_base_url"):
        expect.text(name, session.get(name))
    await chat_in(probe, session)
    seen = await view(probe, session)
    expect.equal("state and turns", (seen["state"], seen["num_turns"]), ("open", 1))
    expect.equal("metadata", seen["metadata"], {"customer": "7"})
    expect.that("the session", "key" not in seen, "without its key", seen)


@case("sessions", "text", ours=SESSIONS)
async def both_sdks(probe: Probe) -> None:
    """Both SDKs reach a session by its URLs, and are one session."""
    session = await opened(probe)
    await chat_in(probe, session)
    _, client = probe.with_key("DUMMY", root=session["anthropic_base_url"])
    await client.messages.create(**probe.message_arguments())
    expect.equal("number of turns", (await view(probe, session))["num_turns"], 2)


@case("sessions", "text", ours=SESSIONS)
async def key_alone(probe: Probe) -> None:
    """The key alone names a session."""
    session = await opened(probe)
    client, _ = probe.with_key(session["key"], root=probe.local.gateway)
    await client.chat.completions.create(**probe.chat_fields())
    expect.equal("number of turns", (await view(probe, session))["num_turns"], 1)


@case("sessions", "text", ours=SESSIONS)
async def rewards(probe: Probe) -> None:
    """A turn is rewarded by the id that its client got, the last one without an id."""
    session = await opened(probe)
    first, last = (await chat_in(probe, session)).id, (await chat_in(probe, session)).id
    path = f"/sessions/{session['id']}/rewards"
    await ask(probe, "POST", path, {"completion_id": first, "reward": 0.25})
    await ask(probe, "POST", path, {"reward": 1})
    expect.equal("rewards", (await view(probe, session))["rewards"], {first: 0.25, last: 1.0})


@case("sessions", "text", ours=SESSIONS)
async def reward_message(probe: Probe) -> None:
    """A message's id rewards its turn too."""
    session = await opened(probe)
    _, client = probe.with_key("DUMMY", root=session["anthropic_base_url"])
    shown = (await client.messages.create(**probe.message_arguments())).id
    path = f"/sessions/{session['id']}/rewards"
    await ask(probe, "POST", path, {"completion_id": shown, "reward": 0.5})
    expect.equal("rewards", list((await view(probe, session))["rewards"].values()), [0.5])


@case("sessions", "records", ours=SESSIONS)
async def export(probe: Probe) -> None:
    """What a session exports are its turns, token by token, with their rewards."""
    session = await opened(probe)
    await chat_in(probe, session)
    await ask(probe, "POST", f"/sessions/{session['id']}/rewards", {"reward": 1})
    body = (await ask(probe, "GET", f"/sessions/{session['id']}/export")).json()
    expect.equal("number of interactions", len(body["interactions"]), 1)
    expect.equal("rewards", list(body["session"]["rewards"].values()), [1.0])


@case("sessions", "limits", ours=SESSIONS)
async def ended(probe: Probe) -> None:
    """A session that has ended takes no request, and can still be read."""
    session = await opened(probe)
    await chat_in(probe, session)
    await ask(probe, "POST", f"/sessions/{session['id']}/end", {"outcome": "ok"})
    await probe.refused(chat_in(probe, session), status=401)
    seen = await view(probe, session)
    expect.equal("state and outcome", (seen["state"], seen["outcome"]), ("ended", "ok"))


@case("sessions", "limits", ours=SESSIONS)
async def limits(probe: Probe) -> None:
    """Limits that a session is opened with hold."""
    session = await opened(probe, max_turns=1)
    await chat_in(probe, session)
    told = await probe.refused(chat_in(probe, session))
    expect.equal("code", told.error.get("code"), "turn_limit")


@case("sessions", "keys", ours=SESSIONS)
async def admin_key(probe: Probe) -> None:
    """Without the admin key no session is opened or listed."""
    session = await opened(probe)
    for method in ("GET", "POST"):
        body: dict[str, Any] | None = {} if method == "POST" else None
        check_error(await ask(probe, method, "/sessions", body, key="wrong"), 401)
        check_error(await ask(probe, method, "/sessions", body, key=session["key"]), 403)
        check_error(await ask(probe, method, "/sessions", body, key=""), 401)


@case("sessions", "keys", ours=SESSIONS)
async def other_session(probe: Probe) -> None:
    """A session's key opens nothing of another session, nor tells if there is one."""
    one, other = await opened(probe), await opened(probe)
    told = []
    for path in (f"/sessions/{other['id']}", "/sessions/nobody", f"/sessions/{other['id']}/export"):
        error = check_error(await ask(probe, "GET", path, key=one["key"]), 403)
        told.append((error["code"], error["message"]))
    expect.equal("number of different errors", len(set(told)), 1)
    reward = await ask(probe, "POST", f"/sessions/{other['id']}/rewards", {"reward": 1}, key=one["key"])
    check_error(reward, 403)
    expect.equal("rewards of the other session", (await view(probe, other))["rewards"], {})


@case("sessions", "keys", ours=SESSIONS)
async def own_key(probe: Probe) -> None:
    """A session's key reads and rewards its own."""
    session = await opened(probe)
    await chat_in(probe, session)
    answer = await ask(probe, "POST", "/sessions/current/rewards", {"reward": 1}, key=session["key"])
    expect.equal("status", answer.status_code, 200)
    expect.equal("rewards", list((await view(probe, session))["rewards"].values()), [1.0])


@case("sessions", "errors", ours=SESSIONS)
async def wrong_rewards(probe: Probe) -> None:
    """A reward of an unknown turn is a 404, one that is no number a 400."""
    session = await opened(probe)
    await chat_in(probe, session)
    path = f"/sessions/{session['id']}/rewards"
    check_error(await ask(probe, "POST", path, {"completion_id": "chatcmpl-nobody", "reward": 1}), 404)
    check_error(await ask(probe, "POST", path, {"reward": "good"}), 400)
    check_error(await ask(probe, "POST", path, {"rewrad": 1}), 400)


@case("sessions", "errors", ours=SESSIONS)
async def ids(probe: Probe) -> None:
    """An id that is taken is a 409, and a session that nobody opened a 404."""
    session = await opened(probe)
    check_error(await ask(probe, "POST", "/sessions", {"id": session["id"]}), 409)
    check_error(await ask(probe, "GET", "/sessions/nobody"), 404)
