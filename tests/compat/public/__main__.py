"""Writes one family's files from its unpacked wheel."""

import sys
from pathlib import Path

from ludus.compat.names import Table
from tests.compat.public import DEFAULTS, default_keys, public_members, public_names, write, write_keys, write_members
from tests.compat.public.calls import FAMILIES, public_calls, write_calls

_, family, package = sys.argv
write(family, public_names(Path(package)))
if family in FAMILIES:
    here = Table.of(family).modules
    classes = public_members(Path(package), Table.of(family).all_names) if family == "verl" else {}
    wanted = {
        path: {name for name in here[path] if here[path][name] != "builtins:dict" and f"{path}.{name}" not in classes}
        for path in here
    }
    write_calls(family, public_calls(Path(package), wanted))
if Path(package, DEFAULTS).is_file():
    write_keys(family, default_keys(Path(package)))
    write_members(family, public_members(Path(package), Table.of(family).all_names))
