"""verl's functions on files, here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.compat.verl.files import copy, copy_to_local, exists, makedirs
from ludus.errors import UserError


def test_folders_and_files(tmp_path: Path) -> None:
    makedirs(str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "b" / "x").write_text("1")
    copy(src=str(tmp_path / "a"), dst=str(tmp_path / "c"))
    copy(str(tmp_path / "c" / "b" / "x"), str(tmp_path / "y"))
    assert exists(str(tmp_path / "c" / "b" / "x")) and (tmp_path / "y").read_text() == "1"
    assert copy_to_local(str(tmp_path)) == str(tmp_path) and not exists(str(tmp_path / "z"))
    with pytest.raises(UserError, match="a path of HDFS"):
        makedirs("hdfs://there")
