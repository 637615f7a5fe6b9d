import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
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


class Hub:
    """A hub with one model, which remembers what was fetched."""

    def __init__(self, model: Path, cache: Path) -> None:
        self.model, self.cache = model, cache
        self.fetched: list[str] = []

    def snapshot_download(self, ref: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        for file in self.model.rglob("*"):
            name = str(file.relative_to(self.model))
            if file.is_dir() or not any(fnmatch(name, each) for each in allow_patterns):
                continue
            if not any(fnmatch(name, each) for each in ignore_patterns) and name not in self.fetched:
                self.fetched.append(name)
                shutil.copyfile(file, self.cache / name)
        return str(self.cache)


@pytest.fixture
def hub(tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    model, cache = tmp_path / "on the hub", tmp_path / "cache"
    shutil.copytree(tiny_model_folder, model)
    cache.mkdir()
    hub = Hub(model, cache)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_weights_are_fetched_once_all_else_was_judged(hub: Hub) -> None:
    """Those of a model that is served; not once more those that other programs read, nor where texts alone do."""
    (hub.model / "consolidated.safetensors").write_text("")
    (hub.model / "original").mkdir()
    (hub.model / "original" / "model.safetensors").write_text("")
    assert resolve_tokenizer("org/name") == hub.cache and "model.safetensors" not in hub.fetched
    assert resolve_model("org/name") == hub.cache
    assert [name for name in hub.fetched if name.endswith(".safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, r"are quantised \(fp8\)"),
        ({"model_type": "mamba"}, "keep another state than keys and values"),
        ({"model_type": "phi"}, "adds a bias"),
        ({"model_type": "no_such"}, "transformers does not know the model"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_before_its_weights_are_fetched(
    changed: dict[str, object], message: str, hub: Hub
) -> None:
    """By its configuration, or by the decoder that it describes; its tokenizer is at hand all the same."""
    file = hub.model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": None, **changed}))
    with pytest.raises(UserError, match=message):
        resolve_model("org/name")
    assert "config.json" in hub.fetched and not any(name.endswith(".safetensors") for name in hub.fetched)
    assert resolve_tokenizer("org/name") == hub.cache


def test_an_adapter_is_fetched_as_it_is(hub: Hub) -> None:
    """Its base is judged when that is fetched."""
    for file in hub.model.iterdir():
        file.unlink()
    (hub.model / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    (hub.model / "adapter_model.safetensors").write_text("")
    assert resolve_model("org/name") == hub.cache and "adapter_model.safetensors" in hub.fetched


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
