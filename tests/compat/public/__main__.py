"""Writes one family's file from its unpacked wheel."""

import sys
from pathlib import Path

from tests.compat.public import public_names, write

_, family, package = sys.argv
write(family, public_names(Path(package)))
