"""Import strings: what they name, and what is said of one that names nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.import_strings import import_object


def test_import_strings_say_what_could_not_be_found(tmp_path: Path) -> None:
    """The module, the file or the name, and what is nearest."""
    assert import_object("ludus.errors.UserError") is import_object("ludus.errors:UserError") is UserError
    (tmp_path / "mine.py").write_text("def loss():\n    pass\n")
    assert import_object(f"{tmp_path}/mine.py:loss").__name__ == "loss"
    (tmp_path / "lacking.py").write_text("import a_library_of_theirs\n")
    for reference, message in (
        ("no.such:thing", "there is no module 'no'"),
        (f"{tmp_path}/lacking.py:loss", "lacking.py cannot be imported: No module named 'a_library_of_theirs'; Ludus"),
        (f"{tmp_path}/other.py:loss", "there is no file"),
        (f"{tmp_path}/mine.py:los", "has no 'los'; did you mean 'loss'"),
        ("loss", "is no import string"),
    ):
        with pytest.raises(UserError, match=message):
            import_object(reference)
