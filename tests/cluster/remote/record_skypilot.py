"""Writes SkyPilot's own schemas of its task file beside this file, for tests that must not need SkyPilot.

In an environment of its own: pip install skypilot==VERSION && python tests/cluster/remote/record_skypilot.py
"""

import json
from pathlib import Path

import sky
from sky.utils import schemas

FOUND = {
    "version": sky.__version__,
    "task": schemas.get_task_schema(),
    "resources": schemas.get_resources_schema(),
}
Path(__file__).with_name("skypilot.json").write_text(json.dumps(FOUND, indent=1, sort_keys=True) + "\n")
