"""Where Ludus cannot run, installing it says so; everything else of the package is in pyproject.toml."""

import sys
from pathlib import Path

if sys.platform == "win32":
    sys.path.insert(0, str(Path(__file__).parent))
    import ludus  # noqa: F401  one sentence, by an ImportError

from setuptools import setup

setup()
