"""Opens the scripted engine on the answers of a file.

Knows: the file.  Knows not: what asks.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.engines.kind import LocalKind
from ludus.engines.script.settings import ScriptSettings
from ludus.engines.scripted import ScriptedEngine
from ludus.errors import UserError
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel


def open_script(model: LoadedModel, tokenizer: Tokenizer, settings: ScriptSettings, **_: object) -> ScriptedEngine:
    """As `LocalKind.open` asks for it; of the model the context's length acts. Raises UserError for a file without
    answers."""
    answers = itertools.cycle(read_answers(Path(settings.answers).expanduser()))
    length, delay_s = model.config.context_length, settings.token_delay_s
    return ScriptedEngine(answers, tokenizer, token_delay_s=delay_s, context_length=length)


def read_answers(path: Path) -> list[str]:
    """Those of the file. Raises UserError if it cannot be read, or holds none."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"engine.answers={str(path)!r} cannot be read: {error}") from None
    if not lines:
        raise UserError(f"engine.answers={str(path)!r} is empty; write an answer a line")
    if path.suffix != ".jsonl":
        return lines
    return [_json_text(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _json_text(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, str):
        raise UserError(f'{where} must be a JSON text, such as "I say 7.", got {line!r:.100}')
    return value


KIND = LocalKind(open_script)
