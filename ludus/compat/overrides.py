"""What a command line changes in a script that stays as it is: models, keys of the configuration, constants.

Knows: the two variables of the environment in which models and keys travel, syntax trees.  Knows not: models, what a
key does.
Invariant: what is given acts or is refused by name; processes that the script starts have the same models and keys.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence

import yaml

from ludus.errors import ConfigError, UserError
from ludus.settings import did_you_mean, parse_override

MODELS = "LUDUS_MODELS"
"""Lines `NAME=PLACE`: a model's name in the script, and a name, folder or address of an API in its place."""
SETTINGS = "LUDUS_SETTINGS"
"""Lines `KEY=VALUE` of Ludus's configuration, above all that the script says."""


def put(models: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
    """Have them hold in this process and in those started from here, beside those that hold already.

    Raises UserError for one of another form.
    """
    for each in models:
        name, sign, place = each.partition("=")
        if not (name and sign and place):
            raise UserError(f"--model {each!r} must be NAME=PATH or NAME=URL, such as gpt-4.1=http://127.0.0.1:8000/v1")
    for each in settings:
        parse_override(each)
    for variable, lines in ((MODELS, models), (SETTINGS, settings)):
        if lines:
            os.environ[variable] = "\n".join([*_lines(variable), *lines])


def model(name: str) -> str:
    """What stands for a model that is loaded: itself, or what was given in its place.

    Raises ConfigError if that is the address of an API.
    """
    place = _models().get(name, name)
    if _is_address(place):
        raise ConfigError(f"--model {name}={place}: it is loaded here, so it must be a folder or a model's name")
    return place


def address(*names: str | None) -> str | None:
    """The address of the API that was given for the first of these models. None: none was."""
    places = (_models().get(name, "") for name in names if name)
    return next((place for place in places if _is_address(place)), None)


def settings() -> list[str]:
    """`KEY=VALUE`, the later above the earlier."""
    return _lines(SETTINGS)


def count(key: str) -> int | None:
    """The last value of a key that counts something. None: it was not given.

    Raises ConfigError if it is no number from 1.
    """
    given = [value for path, value in map(parse_override, settings()) if ".".join(path) == key]
    if not given:
        return None
    if not isinstance(given[-1], int) or given[-1] < 1:
        raise ConfigError(f"{key}={given[-1]!r} must be a whole number from 1")
    return given[-1]


def with_constants(tree: ast.Module, constants: Mapping[str, str], where: str) -> ast.Module:
    """The program with other values for names that it assigns at top level; changes `tree`.

    constants: by name, the value as YAML reads it.
    Raises UserError for a name that is not assigned there.
    """
    missing = dict(constants)
    known = set()
    for node in _top_level(tree.body):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        known.update(names)
        for name in constants.keys() & set(names):
            node.value = ast.copy_location(ast.parse(_literal(constants[name]), mode="eval").body, node)
            missing.pop(name, None)
    for name in missing:
        listed = f"; there are {', '.join(sorted(known)) or 'none'}"
        raise UserError(f"-p {name}: {where} assigns no such name at top level{did_you_mean(name, known, listed)}")
    return ast.fix_missing_locations(tree)


def constant(given: str) -> tuple[str, str]:
    """Name and value of `NAME=VALUE`."""
    name, sign, value = given.partition("=")
    if not (sign and name.isidentifier()):
        raise UserError(f"-p {given!r} must be NAME=VALUE, with a name that the script assigns, such as MAX_STEPS=3")
    return name, value


def _literal(text: str) -> str:
    """The expression of a value as YAML reads it; of what Python has no literal for, the text itself."""
    try:
        value = yaml.safe_load(text)
        ast.literal_eval(repr(value))
    except (yaml.YAMLError, ValueError):
        return repr(text)
    return repr(value)


def _top_level(body: Sequence[ast.stmt]) -> list[ast.Assign | ast.AnnAssign]:
    """Assignments outside of functions and classes."""
    found: list[ast.Assign | ast.AnnAssign] = []
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            found.append(node)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            found += _top_level([*node.body, *(node.orelse if not isinstance(node, ast.With) else ())])
    return found


def _models() -> dict[str, str]:
    return {name: place for name, _, place in (line.partition("=") for line in _lines(MODELS))}


def _lines(variable: str) -> list[str]:
    return [line.strip() for line in os.environ.get(variable, "").splitlines() if line.strip()]


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))
