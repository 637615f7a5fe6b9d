"""Writes one family's files from its unpacked wheel."""

import sys
from pathlib import Path

from tests.compat.public import DEFAULTS, default_keys, public_names, write, write_keys

_, family, package = sys.argv
write(family, public_names(Path(package)))
if Path(package, DEFAULTS).is_file():
    write_keys(family, default_keys(Path(package)))
