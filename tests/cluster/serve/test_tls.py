"""A server of training over HTTPS with a certificate of a private authority."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.server_backend import ServerBackend
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError
from tests.cluster.serve.scripted import KEY, ScriptedWorkshop, serving
from tests.cluster.serve.specs import Model
from tests.http.conftest import Authority, authority

__all__ = ["authority"]  # a fixture


@pytest.mark.parametrize("http", [httpx, httpx2])
def test_a_client_that_trusts_the_authority_trains_and_samples(authority: Authority, tmp_path: Path, http: Any) -> None:
    """Jobs, their events, and requests to the model, whichever HTTP library its SDK is built on."""

    async def main(url: str) -> tuple[int, str]:
        async with ServerBackend(url, KEY, ca_file=authority.ca_file) as backend:
            inference = await backend.prepare(Model())
            result = await backend.train(Model(), [TrajectoryGroup([Trajectory(reward=1.0)])])
            assert inference.transport is not None
            async with http.AsyncClient(transport=inference.transport(http)) as client:
                headers = {"authorization": f"Bearer {inference.key()}"}
                answer = await client.get(f"{inference.base_url}/models", headers=headers)
            return result.step, answer.json()["path"]

    with serving(tmp_path, ScriptedWorkshop(), tls=authority.tls) as served:
        assert served.url.startswith("https://")
        step, path = asyncio.run(main(served.url))
    assert step == 1 and path.endswith("/v1/models")


def test_one_that_does_not_sends_nothing(authority: Authority, tmp_path: Path) -> None:
    """Not even its key; it is an error at once, because waiting would not help."""

    async def main(url: str) -> None:
        async with ServerBackend(url, KEY) as backend:
            await backend.register(Model())

    with (
        serving(tmp_path, ScriptedWorkshop(), tls=authority.tls) as served,
        pytest.raises(UserError, match=r"is not trusted: .*certificate verify failed.*ca_file="),
    ):
        asyncio.run(main(served.url))


def test_an_authority_for_plain_http_is_an_error(authority: Authority) -> None:
    """It could not act."""
    with pytest.raises(UserError, match=r"ca_file cannot act with base_url='http://host:7999'.*write https://"):
        ServerBackend("http://host:7999", KEY, ca_file=authority.ca_file)
