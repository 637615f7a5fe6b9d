"""Writes one family's files from its unpacked wheel."""

import sys
from pathlib import Path

from ludus.compat.names import Table
from tests.compat.public import (
    DEFAULTS,
    WITH_MEMBERS,
    default_keys,
    public_members,
    public_names,
    write,
    write_keys,
    write_members,
)

_, family, package = sys.argv
write(family, public_names(Path(package)))
if family in WITH_MEMBERS:
    here = Table.of(family).modules
    wanted = {path: {name for name in here[path] if here[path][name] != "builtins:dict"} for path in here}
    write_members(family, public_members(Path(package), wanted))
if Path(package, DEFAULTS).is_file():
    write_keys(family, default_keys(Path(package)))
