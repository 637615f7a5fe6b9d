"""Where agents of this family write files of their own: `LOG_ROOT/experiment_name()/trial_name()`.

Knows: the script that runs.  Knows not: runs; what Ludus records lies in the run's folder, whatever agents write.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOG_ROOT = str(Path("runs", "logs"))
"""A folder below the one that the script runs in."""


def experiment_name() -> str:
    """The name of the script that runs."""
    return Path(sys.argv[0]).stem or "interactive"


def trial_name() -> str:
    """One for each process, so that no two write one file."""
    return f"process-{os.getpid()}"
