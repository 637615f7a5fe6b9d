"""Every command of Ludus that a page shows can be typed, and every name that its Python imports is there.

What a command does is tested where its page is followed (`test_tutorial.py` and its neighbours) or where its code is.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.cli.app import COMMANDS, Command
from tests.docs.pages import DOCS

ROOT = DOCS.parent
PAGES = sorted([*ROOT.glob("README*.md"), *DOCS.glob("*.md"), *ROOT.glob("recipes/*/README.md")])
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(ludus [a-z][^`\n]*)`")
_SHELL = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?(ludus [a-z].*)$", re.MULTILINE)
_ENDS = {"|", "&", "&&", ">", ">>", "2>", "#"}
"""Words after which a shell's line is no longer the command's."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command, as they are typed, without `ludus`."""
    text = page.read_text()
    typed = [block for kind, block in _FENCED.findall(text) if kind in ("", "sh", "bash")]
    lines = [line for block in typed for line in _SHELL.findall(block)]
    for line in [*lines, *_INLINE.findall(_FENCED.sub("", text))]:
        try:
            words = shlex.split(line.removesuffix("\\"))[1:]
        except ValueError:  # an example that is not whole
            continue
        yield words[: next((place for place, word in enumerate(words) if word in _ENDS), len(words))]


def split(words: list[str]) -> tuple[str, list[str]]:
    """The name of the command that the words call, and the words after it that are its own."""
    while words[0] in ("-v", "-vv"):
        words = words[1:]
    if words[0] == "run":  # what follows the script is the script's
        script = next((place for place, word in enumerate(words) if place and not word.startswith("-")), len(words))
        words = words[: script + 1]
    two = " ".join(words[:2])
    return (two, words[2:]) if two in COMMANDS else (words[0], words[1:])


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_can_be_typed(page: Path) -> None:
    """It exists, and takes the options that it is given there."""
    wrong = []
    for words in commands(page):
        name, rest = split(words)
        if name in {command.split()[0] for command in COMMANDS} - set(COMMANDS):
            continue  # `ludus verify` alone: the name of a group
        if name not in COMMANDS:
            wrong.append(f"ludus {' '.join(words)}: there is no such command")
            continue
        command = Command(name.split()[-1], COMMANDS[name]).load()
        given = [word for word in rest if word.startswith("-") and word != "--"]
        known = {opt for each in command.params for opt in (*each.opts, *each.secondary_opts)} | {"--help", "-v"}
        wrong += [
            f"ludus {' '.join(words)}: there is no {word}"
            for word in given
            if word.partition("=")[0].rstrip("]") not in known and not re.fullmatch(r"-\d.*", word)
        ]
    assert not wrong


def test_pages_show_commands() -> None:
    """The test before this one finds them."""
    found = [words for page in PAGES for words in commands(page)]
    assert len(found) > 150 and ["train", "run.yaml"] in found
    assert {split(words)[0] for words in found} >= {"train", "watch", "gateway", "serve", "bench trace", "verify chaos"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_a_page_imports_is_there(page: Path) -> None:
    """Of Ludus: the module, and the names that are taken from it."""
    wrong = []
    for kind, block in _FENCED.findall(page.read_text()):
        if kind != "python":
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ludus":
                module = importlib.import_module(node.module or "")
                wrong += [f"{node.module}.{each.name}" for each in node.names if not hasattr(module, each.name)]
            elif isinstance(node, ast.Import):
                for each in node.names:
                    if each.name.partition(".")[0] == "ludus":
                        importlib.import_module(each.name)
    assert not wrong
