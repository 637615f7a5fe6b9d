"""A role for the tests: joins its run and does what its task says."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ludus.cluster.role_client import RoleClient

parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--head")
parser.add_argument("--index", type=int)
given = parser.parse_args()

role_client = RoleClient.of_environment(given.head, given.name, given.index, os.environ)
role_spec = role_client.role_spec()
task = dict(role_spec.task)
sys.stdout.write(f"{given.name}-{given.index} begins, config {role_spec.config!r}\n")
if task.get("child"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    task["child_pid"] = child.pid
if "fails" in task and task.get("fails_at", role_client.attempt) == role_client.attempt:
    sys.stderr.write(task["fails"] + "\n")
    sys.exit(task.get("status", 1))
while given.index > 0 and "waits_for" in task and not Path(task["waits_for"]).exists():
    time.sleep(0.02)
role_client.join(
    f"http://{role_client.address}:1", {"child": task.get("child_pid", 0), "threads": os.environ["OMP_NUM_THREADS"]}
)
if "ends" in task:
    sys.exit(task["ends"])
if task.get("ends_once") and given.index == 0 and role_client.attempt == 0:
    sys.exit(1)
if task.get("is_silent"):
    role_client.leave()
if task.get("is_deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(600)
