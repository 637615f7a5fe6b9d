"""Overrides of an unmodified script from the command line: models, configuration keys, constants.

Knows: the two environment variables that hold models and keys, syntax trees.  Knows not: models, what a key does.
Invariant: every override either takes effect or is refused by name; child processes have the same models and keys.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence

import yaml

from ludus.errors import ConfigError, UserError
from ludus.settings import did_you_mean, parse_override

MODELS = "LUDUS_MODELS"
"""Lines `NAME=PLACE`: a model's name in the script, and the name, folder or API URL that replaces it."""
SETTINGS = "LUDUS_SETTINGS"
"""Lines `KEY=VALUE` of Ludus's configuration, which override the script's."""


def put(models: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
    """Add overrides for this process and its child processes.

    Raises UserError for an override of another form.
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
    """The model to load: `name`, or the model that replaces it.

    Raises ConfigError if it is replaced by an API's URL.
    """
    place = _models().get(name, name)
    if _is_address(place):
        raise ConfigError(f"--model {name}={place}: it is loaded here, so it must be a folder or a model's name")
    return place


def address(*names: str | None) -> str | None:
    """The API URL given for the first of these models that has one. None: none has."""
    places = (_models().get(name, "") for name in names if name)
    return next((place for place in places if _is_address(place)), None)


def settings() -> list[str]:
    """All `KEY=VALUE` overrides; later ones take precedence."""
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
    """The program with other values for names, and variables of `os.environ`, that it assigns at top level; modifies
    `tree`.

    constants: values by name, as YAML.
    Raises UserError for a name that is not assigned there.
    """
    missing = dict(constants)
    known: set[str] = set()
    for node in _top_level(tree.body):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {name: is_text for name, is_text in map(_assigned, targets) if name is not None}
        known.update(names)
        for name in constants.keys() & names.keys():
            literal = repr(constants[name]) if names[name] else _literal(constants[name])
            node.value = ast.copy_location(ast.parse(literal, mode="eval").body, node)
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
    """The expression of a value as Python writes it (None, 1e-5), or YAML (null, {a: 1}); else the text itself."""
    for read in (ast.literal_eval, yaml.safe_load):
        try:
            value = read(text)
            ast.literal_eval(repr(value))
        except (SyntaxError, TypeError, ValueError, yaml.YAMLError):
            continue
        return repr(value)
    return repr(text)


def _assigned(target: ast.expr) -> tuple[str | None, bool]:
    """The name that is assigned, and whether its value is a text in any case. None: it has no name."""
    match target:
        case ast.Name(id=name):
            return name, False
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            return name, True
    return None, False


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
