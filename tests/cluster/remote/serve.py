"""`ludus serve` with work that is scripted, to be launched by tests: the same options, the same log.

python -m tests.cluster.remote.serve serve --folder … --host … --port … --idle-s … --json [KEY=VALUE…]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from ludus.cluster.remote import announcement
from ludus.cluster.serve.activity import Activity
from ludus.cluster.serve.app import PROBES, Api
from ludus.cluster.serve.jobs import Jobs
from ludus.cluster.serve.store import JobStore
from ludus.http.keys import digest
from ludus.http.server import HttpServer
from tests.cluster.serve.killable import FileWorkshop


async def main(asked: argparse.Namespace) -> None:
    job_runner = FileWorkshop(Path(asked.folder))
    with JobStore(Path(asked.folder)) as store:
        jobs = Jobs(store, job_runner)
        app = Api(jobs, job_runner, digest(os.environ["LUDUS_API_KEY"])).build()
        activity = Activity(app, is_busy=lambda: store.next_job() is not None, ignored=(*PROBES, "/api"))
        http = HttpServer(activity, name="server", is_guarded=True)
        url = http.start(asked.host, asked.port)
        sys.stdout.write(json.dumps(announcement(url, asked.host)) + "\n")
        sys.stdout.flush()
        working = asyncio.create_task(jobs.work())
        await activity.wait_idle(asked.idle_s)
        working.cancel()
        jobs.end_following()
        http.stop()


def read(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    for name, kind in (("--folder", str), ("--host", str), ("--port", int), ("--idle-s", float)):
        parser.add_argument(name, type=kind, required=True)
    parser.add_argument("--json", action="store_true", required=True)
    parser.add_argument("settings", nargs="*")
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    asked = read(sys.argv[1:])
    if "fail=true" in asked.settings:
        sys.exit("no accelerator here")
    asyncio.run(main(asked))
