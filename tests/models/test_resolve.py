from pathlib import Path

import pytest

from ludus.errors import UserError
from ludus.models.resolve import adapter_base, base_reference, resolve_model, resolve_tokenizer


def test_unknown_embedded_model_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded model that is not in the cache yet is answered with the command that gets it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match="ludus models get smollm2-135m"):
        resolve_model("smollm2-135m")
    folder = tmp_path / "ludus" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model("smollm2-135m") == folder


def test_folder_is_taken_as_it_is(tiny_model_folder: Path) -> None:
    """A local folder is its own answer."""
    assert resolve_model(str(tiny_model_folder)) == tiny_model_folder


def test_incomplete_folder_names_what_is_missing(tmp_path: Path) -> None:
    """A folder without a model names the file that is missing."""
    with pytest.raises(UserError, match=r"config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        resolve_model(str(tmp_path))


def test_a_tokenizer_needs_no_model(tmp_path: Path, tiny_model_folder: Path) -> None:
    """Where only text is wanted, a folder with a tokenizer alone will do; everything else is found as a model is."""
    (tmp_path / "tokenizer.json").write_text("{}")
    assert resolve_tokenizer(str(tmp_path)) == tmp_path
    assert resolve_tokenizer(str(tiny_model_folder)) == tiny_model_folder
    with pytest.raises(UserError, match="no model 'no such model'"):
        resolve_tokenizer("no such model")


def test_nonsense_is_refused_with_what_is_allowed() -> None:
    """A name that is neither folder nor hub id nor embedded lists the embedded ones."""
    with pytest.raises(UserError, match="smollm2-135m"):
        resolve_model("no such model")


def test_adapter_folder_names_its_base(tmp_path: Path) -> None:
    """A folder with an adapter alone tells its base model; one with a whole model does not."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    assert adapter_base(tmp_path) == "base"
    assert resolve_model(str(tmp_path)) == tmp_path
    (tmp_path / "config.json").write_text("{}")
    assert adapter_base(tmp_path) is None


def test_an_adapter_names_its_base_as_the_user_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id stays a hub id and a folder the folder that was given; only an embedded model is named by its folder."""
    cached = tmp_path / "cache"
    assert base_reference("org/name", cached) == "org/name"
    assert base_reference("smollm2-135m", cached) == str(cached)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert base_reference("mine", Path("mine")) == "mine"
