"""Registries of agents and environments, and the descriptions by which a run names them.

Knows: names, classes, constructor arguments.  Knows not: what an agent or an environment does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.settings import did_you_mean


@dataclass
class AgentAbstraction:
    """A registered agent and the arguments of its constructor."""

    agent_kind: ClassVar[str] = "ludus.compat.realhf.adapter:from_queue"

    type_: str = "null"
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class EnvServiceAbstraction:
    """A registered environment and the arguments of its constructor."""

    type_: str = "null"
    args: dict[str, Any] = field(default_factory=dict)


def register(table: dict[str, Any], kind: str, name: str, cls: Any) -> None:
    """Register `cls` as `name`, replacing a class of Ludus. Raises UserError if another class has that name."""
    if not isinstance(name, str) or not name or "/" in name:
        raise UserError(f"the {kind} {cls!r:.100} cannot be registered as {name!r}: a name is a string without '/'")
    known = table.get(name)
    # A file or notebook cell that is executed again defines the same class again.
    if known is not None and not isinstance(known, str) and _origin(known) != _origin(cls):
        raise UserError(f"the {kind} {name!r} is registered already, as {known.__module__}.{known.__qualname__}")
    table[name] = cls


def _origin(cls: Any) -> tuple[str, str]:
    """Module and name of a class."""
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or cls.__module__, cls.__qualname__


def find(table: Mapping[str, Any], name: str) -> Any:
    """The class registered as `name`; Ludus's own are registered by import string. None: there is none."""
    found = table.get(name)
    return import_object(found) if isinstance(found, str) else found


def make(table: Mapping[str, Any], kind: str, cfg: AgentAbstraction | EnvServiceAbstraction) -> Any:
    """An instance of the class registered as `cfg.type_`. Raises UserError, with the nearest name, if there is none."""
    cls = find(table, cfg.type_)
    if cls is None:
        hint = did_you_mean(str(cfg.type_), table)
        known = ", ".join(sorted(table))
        raise UserError(
            f"no {kind} is registered as {cfg.type_!r}{hint} Registered: {known}; import the module of yours"
        )
    return cls(**cfg.args)
