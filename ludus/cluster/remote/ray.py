"""Launches a server as a job of a Ray cluster, over the HTTP API of its dashboard; Ray need not be installed here.

Knows: Ray's jobs API.  Knows not: what the server does.
Rules: the server listens on all addresses of its node, and every request needs its key. Anyone with access to the
dashboard can run code on the cluster, and read the key there; that is Ray's security model.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import httpx

from ludus.cluster.remote.base import ServerStatus, Started
from ludus.cluster.remote.folder import KEY_VARIABLE, ShellTarget, becoming, check_same, prepared, serve_command
from ludus.cluster.remote.server_address import ServerAddress
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import Shell, UnreachableError
from ludus.cluster.remote.tunnel import Tunnel
from ludus.errors import BackendError, UserError
from ludus.http.keys import new_key
from ludus.processes.address import free_port

ADDRESS_VARIABLE, TOKEN_VARIABLE = "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN"
"""Ray's own variables: the address of its dashboard, and the token of a cluster that requires one."""
DASHBOARD_PORT = 8265
TIMEOUT_S = 60.0
_ALIVE = ("PENDING", "RUNNING")
_FOLDER, _COMMAND = "ludus_folder", "ludus_command"


class RayTarget(ShellTarget):
    """A job of the cluster whose dashboard is at `address`, as seen from `shell`."""

    def __init__(self, shell: Shell, address: str, settings: LaunchSettings) -> None:
        url = httpx.URL(address)
        if url.scheme not in ("http", "https") or not url.host:
            raise UserError(f"{address!r} is no address of Ray's dashboard; it looks like http://head:{DASHBOARD_PORT}")
        super().__init__(f"Ray at {address if shell.name == 'this machine' else shell.name}", shell, settings)
        self._address = url
        self._folder = f"{settings.workdir}:{settings.folder}"
        self._tunnel: Tunnel | None = None
        self._at: str | None = None
        """Address at which the dashboard is reached from here. None: not connected yet."""
        self._job = ""

    def __repr__(self) -> str:
        return f"RayTarget({self.name!r}, job={self._job or 'none'!r})"

    def start(self) -> Started:
        command = serve_command(self._settings, host="0.0.0.0")
        for job in self._ask("GET", "/api/jobs/"):
            metadata = job.get("metadata") or {}
            if job["status"] in _ALIVE and metadata.get(_FOLDER) == self._folder:
                check_same(self.name, self._folder, running=metadata[_COMMAND], wanted=command)
                self._job = job["submission_id"]
                return Started(job["runtime_env"]["env_vars"][KEY_VARIABLE], is_new=False)
        self._job, key = f"ludus-serve-{uuid.uuid4().hex[:12]}", new_key()
        self._ask("POST", "/api/jobs/", self._request(command, key))
        return Started(key, is_new=True)

    def status(self) -> ServerStatus:
        job = self._ask("GET", f"/api/jobs/{self._job}")
        log = self._ask("GET", f"/api/jobs/{self._job}/logs")["logs"]
        message = f" ({job['message']})" if job.get("message") else ""
        words = f"job {self._job} is {job['status']}{message}"
        return ServerStatus(job["status"] in _ALIVE, words, log, ServerAddress.find(log))

    def stop(self) -> None:
        if self._job:
            self._ask("POST", f"/api/jobs/{self._job}/stop")
        if self._tunnel is not None:
            self._tunnel.close()
            self._tunnel = self._at = None

    # ---- inside

    def _request(self, command: str, key: str) -> dict[str, Any]:
        asked = self._settings.resources
        request: dict[str, Any] = {
            "entrypoint": prepared(self._settings) + becoming(self._settings, command),
            "submission_id": self._job,
            "metadata": {_FOLDER: self._folder, _COMMAND: command},
            "runtime_env": {"env_vars": {KEY_VARIABLE: key}},
            "entrypoint_num_cpus": asked.num_cpus,
            "entrypoint_num_gpus": asked.gpus,
        }
        return request if asked.memory_gb is None else request | {"entrypoint_memory": round(asked.memory_gb * 2**30)}

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            answer = httpx.request(method, self._reached() + path, json=body, headers=headers, timeout=TIMEOUT_S)
        except httpx.TransportError as error:
            raise UnreachableError(f"{self.name} cannot be reached: {type(error).__name__}: {error}") from error
        if not answer.is_success:
            raise BackendError(f"{self.name} answered {method} {path} with {answer.status_code}: {answer.text[-2000:]}")
        return answer.json()

    def _reached(self) -> str:
        if self._at is None:
            port = free_port("127.0.0.1")
            command = self._shell.forward(port, self._address.host, self._address.port or DASHBOARD_PORT)
            if command is None:
                self._at = str(self._address).rstrip("/")
            else:
                self._tunnel = Tunnel(command)
                self._tunnel.open()
                self._at = f"http://127.0.0.1:{port}"
        return self._at


def dashboard() -> str:
    """The address of the dashboard that Ray's own commands use."""
    return os.environ.get(ADDRESS_VARIABLE) or f"http://127.0.0.1:{DASHBOARD_PORT}"
