from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.models.fetch import fetch_model


def test_model_in_the_cache_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is already there is only looked up."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "ludus" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert fetch_model("smollm2-135m") == folder


def test_unknown_name_lists_the_known_ones() -> None:
    """A name that is not embedded is refused with those that are."""
    with pytest.raises(UserError, match="smollm2-135m"):
        fetch_model("smollm3")
