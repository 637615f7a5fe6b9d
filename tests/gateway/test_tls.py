"""The gateway over HTTPS with a certificate of a private authority: SDKs, and training on sessions as they arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import ludus
from ludus.config import Config
from ludus.episodes.spec import SessionSpec
from ludus.errors import ConfigError, UserError
from ludus.gateway.server import GatewayServer
from ludus.rollout.settings import InlineSettings
from tests.http.conftest import Authority, authority

__all__ = ["authority"]  # a fixture
ASK: Any = [{"role": "user", "content": "Guess."}]


def test_sdks_follow_the_variable(open_sessions: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SSL_CERT_FILE they are served; without it they say nothing to the gateway."""
    session_manager = open_sessions(["7", "8"])
    with GatewayServer(session_manager.sessions, tls=authority.tls) as server:
        session = session_manager.recorder.open(SessionSpec("secure"))
        url = server.url_for(session_manager.sessions.add(session))
        assert url.startswith("https://127.0.0.1:")
        with (
            openai.OpenAI(base_url=url, api_key="DUMMY", max_retries=0) as sdk,
            pytest.raises(openai.APIConnectionError),
        ):
            sdk.chat.completions.create(model="default", messages=ASK)
        assert session.snapshot().turns == ()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
        with openai.OpenAI(base_url=url, api_key="DUMMY") as sdk:
            assert sdk.chat.completions.create(model="default", messages=ASK).choices[0].message.content == "7"
        with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="DUMMY") as sdk:
            answer = sdk.messages.create(model="default", messages=ASK, max_tokens=8)
        assert answer.content[0].type == "text" and answer.content[0].text == "8"


def test_a_run_that_could_not_serve_says_so_before_it_loads(authority: Authority, tmp_path: Path) -> None:
    """Certificates that cannot be used, and those that cannot act."""
    with pytest.raises(ConfigError, match=r"unknown key 'tls_cert'"):
        InlineSettings(tls_cert=authority.tls.cert)  # type: ignore[call-arg]
    config = Config(
        name="secure",
        total_train_steps=1,
        rollout={"agent": {"mode": "online", "port": 0, "tls_cert": str(authority.tls.cert)}},
    )
    with pytest.raises(UserError, match="a certificate was given for TLS, but no private key"):
        ludus.Trainer(config).train(admin_key="k" * 20)
