"""`ludus engine serve`: serves Ludus's engine over HTTP, for runs of other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Option

from ludus.cli.console import say
from ludus.cli.options import Host, ModelArgument, Overrides, Port, TlsCert, TlsKey
from ludus.cli.signals import raise_if_interrupted, until_signalled
from ludus.cluster.address import ListenAddress
from ludus.cluster.serving import check_address, serving_engine
from ludus.compat.config import Config, load_config
from ludus.engines.serving.command import KEY_VARIABLE
from ludus.gateway.server import calm_garbage_collection
from ludus.http.tls import Tls
from ludus.processes.blocking import run_blocking


def serve(
    model: ModelArgument,
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Port = 8100,
    api_key: Annotated[str | None, Option(envvar=KEY_VARIABLE, help="Key that clients need; or a new one.")] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    scratch: Annotated[
        Path | None, Option(exists=True, file_okay=False, help="For new weights on their way in; or the system's.")
    ] = None,
) -> None:
    """Serve a model's tokens, until Ctrl-C, to runs that name its URL.

    Runs sample from it and publish new weights to it with
    engine.kind=server engine.urls=[URL]. The model is the one that they
    train; where they train adapters, the same model.lora is given here.

    [bold]Examples:[/]  ludus engine serve smollm2-135m

      ludus engine serve smollm2-135m model.lora.rank=8 engine.max_running=64
    """
    address = ListenAddress(host, port, api_key, Tls.of(tls_cert, tls_key))
    check_address(address)
    config = load_config(None, [f"model.path={model}", *(overrides or ())])
    run_blocking(_serve(config, address, scratch))


async def _serve(config: Config, address: ListenAddress, scratch: Path | None) -> None:
    async with serving_engine(config, address, scratch=scratch) as served:
        calm_garbage_collection()
        say(f"serving [bold]{config.model.path}[/] at [bold]{served.url}[/]")
        if served.key_file is not None:
            say(f"its key is in [bold]{escape(str(served.key_file))}[/], where runs on this machine find it")
        say("[dim]Ctrl-C ends it[/]")
        # A failed engine is not restarted here; whatever started this process may do that.
        ended_by = await until_signalled(served.wait_ended())
    raise_if_interrupted(ended_by)
