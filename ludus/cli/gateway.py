"""`ludus gateway`: a model behind an OpenAI-compatible URL."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ludus.api.local import open_local
from ludus.api.remote import open_remote
from ludus.cli.console import say
from ludus.cli.options import AdminKey, ModelArgument, Overrides, Port, TlsCert, TlsKey
from ludus.cli.recording import Access, open_recording, show_admin_key
from ludus.cli.signals import until_signalled
from ludus.compat.config import Config, load_config
from ludus.engines.settings import ServerSettings
from ludus.engines.table import ENGINES
from ludus.episodes.episodes import IDLE_S
from ludus.episodes.recorder import Recorder
from ludus.errors import UserError
from ludus.gateway.server import GatewayServer, calm_garbage_collection
from ludus.gateway.traffic import GatewayStats
from ludus.http.tls import Tls
from ludus.processes.blocking import run_blocking

_SERVERS = [name for name, settings in ENGINES.items() if issubclass(settings, ServerSettings)]


def gateway(
    model: ModelArgument,
    overrides: Overrides = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines reach needs an admin key of yours.")
    ] = "127.0.0.1",
    port: Port = 8000,
    engine: Annotated[
        str, typer.Option(help=f"local: in this process. Or a server at --url: {', '.join(_SERVERS)}.")
    ] = "local",
    url: Annotated[
        list[str] | None,
        typer.Option(help="Where the server is, http://localhost:8000; several share the work."),
    ] = None,
    engine_key: Annotated[str | None, typer.Option(help="The key that the server wants.")] = None,
    template: Annotated[
        str | None, typer.Option(help="Chat template: a .jinja file, or the name of a shipped one (chatml-tools).")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Run folder to record into, new or old; runs/gateway, or the next free name.")
    ] = None,
    admin_key: AdminKey = None,
    is_open: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Let any key open a session; on by default where only this machine can."),
    ] = None,
    idle_s: Annotated[
        float, typer.Option("--idle-s", min=1.0, help="Seconds without a request after which a session ends.")
    ] = IDLE_S,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Serve a model at an OpenAI-compatible URL, until Ctrl-C, and record every session.

    It is the gateway that agents train behind. Any key is accepted;
    requests with one key belong to one session. Sessions may be opened,
    rewarded and ended over HTTP with the admin key that is shown.

    [bold]Examples:[/]  ludus gateway smollm2-135m --port 8000

      ludus gateway MODEL --engine vllm --url http://localhost:8001

      curl localhost:8000/v1/chat/completions \\
        -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    access = Access.checked(host, admin_key, is_open, Tls.of(tls_cert, tls_key))
    if (engine in _SERVERS) != bool(url):
        raise UserError("--engine and --url belong together: --engine vllm --url http://localhost:8000")
    chosen = [f"engine.kind={engine}"]
    if template is not None:
        chosen.append(f"model.chat_template={template}")
    if url:
        chosen += [f"engine.urls={json.dumps(url)}", f"engine.api_key={json.dumps(engine_key)}"]
    config = load_config(None, [f"model.path={model}", *chosen, *(overrides or ())])
    opening = open_remote(config) if url else _open_here(config)
    run_blocking(_serve(config, opening, access, port, into, idle_s=idle_s))


@asynccontextmanager
async def _open_here(config: Config) -> AsyncIterator[Recorder]:
    async with open_local(config) as local:
        yield local.recorder


async def _serve(
    config: Config,
    opening: AbstractAsyncContextManager[Recorder],
    access: Access,
    port: int,
    into: Path | None,
    *,
    idle_s: float,
) -> None:
    async with (
        opening as recorder,
        open_recording(into, config, recorder, access, idle_s=idle_s) as recording,
    ):
        calm_garbage_collection()
        server = GatewayServer(recording.episodes.keys, recording.options, tls=access.tls)
        url = server.start(access.host, port)
        say(f"serving [bold]{config.model.path}[/] at [bold]{url}/v1[/], model name default")
        show_admin_key(Console(), recording, access)
        say(f"[dim]recording into {recording.store.folder}; Ctrl-C ends it[/]")
        try:
            ended_by = await until_signalled()
        finally:
            server.stop()
            say(_summary(server.stats()), style="dim")
            await recording.episodes.aclose("the gateway ended")
            say(recording.summary(), style="dim")
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _summary(stats: GatewayStats) -> str:
    new = f"{stats.num_new_messages:,} of {stats.num_messages:,} messages new"
    return f"{stats.num_requests:,} requests, {new}; CPU {stats.cpu_s:.1f} s, {stats.json_s:.1f} s of it decoding JSON"
