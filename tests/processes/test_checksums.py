"""Sums say whether files are as they were written."""

from __future__ import annotations

from pathlib import Path

from ludus.processes.checksums import checksums, damage
from ludus.processes.files import set_aside


def test_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    """FIPS 180-4's example of SHA-256: 'abc'."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a").write_text("abc")
    known = checksums(tmp_path)
    assert known == {"below/a": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
    assert damage(tmp_path, known) is None
    (tmp_path / "other").write_text("others do not count")
    assert damage(tmp_path, known) is None
    (tmp_path / "below" / "a").write_text("abd")
    assert damage(tmp_path, known) == "below/a (3 bytes) does not hold what was written"


def test_what_is_set_aside_is_never_overwritten(tmp_path: Path) -> None:
    """Each damaged file of one name gets another name."""
    for number in range(3):
        (tmp_path / "run.db").write_text(str(number))
        set_aside(tmp_path / "run.db")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "damaged-run.db": "0",
        "damaged-2-run.db": "1",
        "damaged-3-run.db": "2",
    }
