"""`ludus gateway`: serves a model at an OpenAI-compatible URL."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated

from typer import Option

from ludus.api.cards.start import planned
from ludus.api.local import open_local
from ludus.api.remote import open_remote
from ludus.cli.console import say, show_admin_key, show_damages
from ludus.cli.options import AdminKey, Host, ModelArgument, Overrides, Port, TlsCert, TlsKey
from ludus.cli.signals import raise_if_interrupted, until_signalled
from ludus.cluster.address import ListenAddress
from ludus.compat.config import Config, load_config
from ludus.engines.settings import ServerSettings
from ludus.engines.table import ENGINES
from ludus.episodes.archive import RunArchive
from ludus.episodes.episodes import IDLE_S, Episodes
from ludus.episodes.recorder import Recorder
from ludus.errors import UserError
from ludus.gateway.app import GatewayOptions, check_admin_key
from ludus.gateway.server import GatewayServer, calm_garbage_collection
from ludus.gateway.traffic import GatewayStats
from ludus.http.keys import is_loopback, new_key
from ludus.http.tls import Tls
from ludus.processes.blocking import run_blocking
from ludus.runs.names import free_name
from ludus.runs.store import RunStore
from ludus.runs.trackers.select import check_trackers, open_trackers

_SERVERS = [name for name, settings in ENGINES.items() if issubclass(settings, ServerSettings)]


def gateway(
    model: ModelArgument,
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    engine: Annotated[
        str, Option(help=f"local: in this process. Or a server at --url: {', '.join(_SERVERS)}.")
    ] = "local",
    url: Annotated[list[str] | None, Option(help="Where it is: http://localhost:8000; several share.")] = None,
    engine_key: Annotated[str | None, Option(help="The key that the server wants.")] = None,
    template: Annotated[str | None, Option(help="A .jinja file, or a shipped one, such as chatml-tools.")] = None,
    into: Annotated[Path | None, Option(help="Run folder, new or old; or the first free runs/gateway-N.")] = None,
    admin_key: AdminKey = None,
    is_open: Annotated[
        bool | None, Option("--open/--no-open", help="Any key opens a session; by default where only this machine can.")
    ] = None,
    idle_s: Annotated[float, Option("--idle-s", min=1.0, help="Idle seconds after which a session ends.")] = IDLE_S,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Serve a model at an OpenAI-compatible URL, until Ctrl-C, and record every session.

    The same gateway serves agents during training. Requests with the same
    key belong to one session. On this machine, or with --open, any key is
    accepted. With the admin key that is shown, sessions can be opened,
    rewarded and ended over HTTP.

    [bold]Examples:[/]  ludus gateway smollm2-135m --port 8000

      ludus gateway MODEL --engine vllm --url http://localhost:8001

      curl localhost:8000/v1/chat/completions \\
        -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    check_admin_key(host, admin_key)
    if (engine in _SERVERS) != bool(url):
        raise UserError("--engine and --url belong together: --engine vllm --url http://localhost:8000")
    chosen = [f"engine.kind={engine}"]
    if template is not None:
        chosen.append(f"model.chat_template={template}")
    if url:
        chosen += [f"engine.urls={json.dumps(url)}", f"engine.api_key={json.dumps(engine_key)}"]
    config = load_config(None, [f"model.path={model}", *chosen, *(overrides or ())])
    folder = Path("runs") / free_name(Path("runs"), "gateway") if into is None else into
    takes_any = is_loopback(host) if is_open is None else is_open
    address = ListenAddress(host, port, admin_key, Tls.of(tls_cert, tls_key))
    opening = open_remote(config) if url else _open_here(config)
    run_blocking(_serve(config, opening, folder, address, takes_any=takes_any, idle_s=idle_s))


@asynccontextmanager
async def _open_here(config: Config) -> AsyncIterator[Recorder]:
    async with open_local(planned(config, trains=False)) as local:
        yield local.recorder


async def _serve(
    config: Config,
    opening: AbstractAsyncContextManager[Recorder],
    folder: Path,
    address: ListenAddress,
    *,
    takes_any: bool,
    idle_s: float,
) -> None:
    """Serve until a signal. folder: an existing run or a new one, in which all sessions are recorded.  takes_any: any
    key opens a session.

    address: if it has no key, one is generated.
    """
    check_trackers(config.trackers)
    is_there = RunStore.is_there(folder)
    async with opening as recorder:
        store = RunStore.open(folder) if is_there else RunStore.create(folder.parent, folder.name, config.to_yaml())
        with store, open_trackers(config.trackers, folder.name, store.folder):
            show_damages(store.damages())
            num_before = store.num_episodes
            episodes, key = Episodes(recorder, RunArchive(store), idle_s=idle_s), address.key or new_key()
            by_key = episodes.open_for_key if takes_any else None
            options = GatewayOptions(by_key, recorder.model_list, episodes, key)
            calm_garbage_collection()
            server = GatewayServer(episodes.keys, options, tls=address.tls)
            try:
                url = server.start(address.host, address.port)
                say(f"serving [bold]{config.model.path}[/] at [bold]{url}/v1[/], model name default")
                show_admin_key(key, address.key)
                say(f"[dim]recording into {folder}; Ctrl-C ends it[/]")
                ended_by = await until_signalled()
            finally:
                server.stop()
                say(_summary(server.stats()), style="dim")
                await episodes.aclose("the gateway ended")
            say(_recorded(store, num_before), style="dim")
    raise_if_interrupted(ended_by)


def _summary(stats: GatewayStats) -> str:
    new = f"{stats.num_new_messages:,} of {stats.num_messages:,} messages new"
    return f"{stats.num_requests:,} requests, {new}; CPU {stats.cpu_s:.1f} s, {stats.json_s:.1f} s of it decoding JSON"


def _recorded(store: RunStore, num_before: int) -> str:
    """A sentence about what was recorded. num_before: number of episodes that the run had before."""
    rows = store.episode_rows()[num_before:]
    turns, tokens = sum(row["num_turns"] for row in rows), sum(row["num_sampled_tokens"] for row in rows)
    rewarded = sum(row["reward"] is not None for row in rows)
    counts = f"{len(rows):,} sessions, {turns:,} turns, {tokens:,} sampled tokens, {rewarded:,} sessions with rewards"
    return f"recorded {counts} in {store.folder}"
