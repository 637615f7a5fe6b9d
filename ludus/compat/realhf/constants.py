"""The folder in which agents of this family write their own files: `LOG_ROOT/experiment_name()/trial_name()`.

Knows: the running script.  Knows not: runs, which are recorded in their own folders.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOG_ROOT = str(Path("runs", "logs"))
"""A folder in the working directory."""


def experiment_name() -> str:
    """The name of the running script."""
    return Path(sys.argv[0]).stem or "interactive"


def trial_name() -> str:
    """A different name for each process, so that no two write the same file."""
    return f"process-{os.getpid()}"
