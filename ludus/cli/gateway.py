"""`ludus gateway`: a model behind an OpenAI-compatible URL."""

from __future__ import annotations

import asyncio
import itertools
import signal
from typing import Annotated

import typer
from rich.console import Console

from ludus.api.blocking import run_blocking
from ludus.api.local import open_local
from ludus.cli.train import Overrides
from ludus.config import Config, load_config
from ludus.gateway.app import GatewayOptions
from ludus.gateway.keys import Sessions
from ludus.gateway.server import GatewayServer
from ludus.gateway.traffic import GatewayStats
from ludus.record.recorder import RecordedSession, Recorder


def gateway(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An embedded name, a local folder, or a hub id.")],
    overrides: Overrides = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")] = 8000,
    template: Annotated[
        str | None, typer.Option(help="Chat template: a .jinja file, or the name of a shipped one (chatml-tools).")
    ] = None,
) -> None:
    """Serve a model at an OpenAI-compatible URL, until Ctrl-C.

    It is the gateway that agents train behind. Any key is accepted;
    requests with one key belong to one session.

    [bold]Examples:[/]  ludus gateway smollm2-135m --port 8000

      curl localhost:8000/v1/chat/completions \\
        -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    config = load_config(None, [f"model.path={model}", *_template_override(template), *(overrides or ())])
    run_blocking(_serve(config, host, port))


async def _serve(config: Config, host: str, port: int) -> None:
    console = Console()
    async with open_local(config) as local:
        server = GatewayServer(Sessions(), GatewayOptions(open_mode=_SessionOpener(local.recorder)))
        url = server.start(host, port)
        console.print(f"serving [bold]{config.model.path}[/] at [bold]{url}/v1[/], model name default", highlight=False)
        console.print("[dim]Ctrl-C ends it[/]")
        try:
            ended_by = await _until_signalled()
        finally:
            server.stop()
            console.print(_summary(server.stats()), style="dim", highlight=False)
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _summary(stats: GatewayStats) -> str:
    new = f"{stats.num_new_messages:,} of {stats.num_messages:,} messages new"
    return f"{stats.num_requests:,} requests, {new}; CPU {stats.cpu_s:.1f} s, {stats.json_s:.1f} s of it decoding JSON"


class _SessionOpener:
    """Makes the session of a key that names none yet."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers = itertools.count()

    def __call__(self) -> RecordedSession:
        return self._recorder.open(session_id=f"gateway-{next(self._numbers)}")


async def _until_signalled() -> signal.Signals:
    """Ctrl-C, or a supervisor's polite request to end."""
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.put_nowait, number)
    return await asked.get()


def _template_override(template: str | None) -> list[str]:
    return [] if template is None else [f"model.chat_template={template}"]
