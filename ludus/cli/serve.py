"""`ludus serve`: trains models for clients on other machines, which need neither torch nor a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from ludus.cli.console import say
from ludus.cli.options import Host, Overrides, Port, TlsCert, TlsKey
from ludus.cli.signals import raise_if_interrupted, until_signalled
from ludus.cluster.address import ListenAddress
from ludus.cluster.remote import announcement
from ludus.cluster.serve.server import KEY_VARIABLE, check_address, running
from ludus.cluster.serve.store import JobStore
from ludus.compat.art.configs import check_config, default_config
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.workshop import BackendJobRunner
from ludus.compat.config import Config
from ludus.gateway.server import calm_garbage_collection
from ludus.http.tls import Tls
from ludus.processes.blocking import run_blocking
from ludus.settings import with_overrides

DEFAULT_FOLDER = Path("runs") / "serve"


def serve(
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Port = 7999,  # where ART's server was
    folder: Annotated[Path, Option(help="For models, checkpoints and jobs; it may be an old one.")] = DEFAULT_FOLDER,
    api_key: Annotated[
        str | None, Option(envvar=KEY_VARIABLE, help="Key that clients need; without one, the folder's, or a new one.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    idle_s: Annotated[
        float | None, Option("--idle-s", min=1.0, help="End after so many seconds without a request and a job.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Say where it listens as one line of JSON.")] = False,
) -> None:
    """Train models for clients elsewhere, until Ctrl-C.

    A client needs only this server's address and its key:
    ludus.compat.art.ServerBackend("http://host:7999"). It samples from the
    models over OpenAI's protocol and sends trajectories to be trained on.
    Whatever was acknowledged is done, also if the server is killed and
    started again with the same folder.

    KEY=VALUE are settings of every model on top of those of a backend;
    a client may change them for its own model.

    [bold]Examples:[/]  ludus serve

      LUDUS_API_KEY=$(openssl rand -hex 24) ludus serve --host 0.0.0.0
    """
    address = ListenAddress(host, port, api_key, Tls.of(tls_cert, tls_key))
    check_address(address)
    defaults = default_config().model_dump(mode="json", exclude_unset=True)
    config = check_config(Config.of(with_overrides(defaults, overrides or ())))
    run_blocking(_serve(folder, address, config, idle_s=idle_s, as_json=as_json))


async def _serve(folder: Path, address: ListenAddress, config: Config, *, idle_s: float | None, as_json: bool) -> None:
    with JobStore(folder) as store:
        backend = LocalBackend(path=folder / "models", config=config)
        async with backend, running(store, backend, BackendJobRunner(backend), address) as server:
            calm_garbage_collection()
            say(f"serving at [bold]{server.url}[/] from {folder}")
            if server.new_key is not None:
                say(f"key [bold]{server.new_key}[/], shown this once")
            say("[dim]Ctrl-C ends it; jobs that are not done then are done next time[/]")
            if as_json:
                typer.echo(json.dumps(announcement(server.url, address.host)))
            idle = None if idle_s is None else server.activity.wait_idle(idle_s)
            ended_by = await until_signalled(idle)
            if ended_by is None:
                say(f"nobody has asked for {idle_s:g} s, and every job is done; ending")
    raise_if_interrupted(ended_by)
