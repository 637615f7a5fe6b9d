"""Writes one family's files from its unpacked wheel."""

import sys
from pathlib import Path

from ludus.compat.names import Table
from tests.compat.public import DEFAULTS, default_keys, public_names, write, write_keys
from tests.compat.public.calls import public_calls, write_calls

_, family, package = sys.argv
write(family, public_names(Path(package)))
here = Table.of(family).modules
wanted = {path: {name for name in here[path] if here[path][name] != "builtins:dict"} for path in here}
write_calls(family, public_calls(Path(package), wanted))
if Path(package, DEFAULTS).is_file():
    write_keys(family, default_keys(Path(package)))
