"""Simulated users: what answers the model in a person's stead, by name, as verl's users write them.

Knows: the file that names them, what a row asks for.  Knows not: models, tools.
Invariant: `start_interaction` and `finalize_interaction` run once in a trajectory that has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pydantic

from ludus.compat.names import find_class
from ludus.errors import ConfigError, UserError
from ludus.settings import Settings, did_you_mean, read_yaml


class BaseInteraction:
    """A simulated user; derive from it and write `generate_response`.

    One object serves a run; what belongs to one trajectory is an instance, known by its id.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """config: what stands below `config` in the file."""
        self.config = dict(config)
        self.name: str = self.config.get("name", "interaction_agent")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """The id of a new instance. kwargs: the row's `interaction_kwargs`."""
        return instance_id or str(uuid4())

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Whether the conversation ends, what the user says, what the model's answer was worth, and metrics."""
        raise NotImplementedError(f"{type(self).__name__} has no `generate_response`")

    async def calculate_score(self) -> float:
        """What the whole conversation was worth; asked for by loops of a user's own alone."""
        return 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Ends the instance, however the trajectory ended."""


class InteractionEntry(Settings):
    """One simulated user, below `interaction`."""

    class_name: str
    """Its class: 'pkg.mod.Name' or 'path/to/file.py:Name'."""
    name: str | None = None
    """What rows call it. None: the class's name in lower case, without 'interaction'."""
    config: dict[str, Any] = pydantic.Field(default_factory=dict)


class InteractionFile(Settings):
    """The whole file."""

    interaction: tuple[InteractionEntry, ...]


def load_interactions(config_path: Path | str | None) -> dict[str, BaseInteraction]:
    """The simulated users of a run's file, by name. Raises also if one says nothing."""
    users = {} if config_path is None else initialize_interactions_from_config(config_path)
    for name, user in users.items():
        if type(user).generate_response is BaseInteraction.generate_response:
            raise ConfigError(f"{config_path}: {name}: {type(user).__name__} needs a method `generate_response`")
    return users


def initialize_interactions_from_config(interaction_config_file: Path | str) -> dict[str, BaseInteraction]:
    """The simulated users of the YAML file, by name. Raises UserError or ConfigError that says which entry is wrong."""
    path = Path(interaction_config_file).expanduser()
    users: dict[str, BaseInteraction] = {}
    try:
        entries = InteractionFile(**read_yaml(path)).interaction
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    for idx, entry in enumerate(entries):
        cls = find_class(entry.class_name, BaseInteraction, f"{path}: interaction.{idx}: class_name")
        name = entry.name or cls.__name__.lower().removesuffix("interaction") or cls.__name__.lower()
        if name in users:
            raise ConfigError(f"{path}: Duplicate interaction name {name!r} found; name one of them otherwise")
        users[name] = cls({**entry.config, "name": name})
        users[name].name = name
    return users


def get_interaction_class(reference: str) -> type[BaseInteraction]:
    """The class that an import string names. Raises ConfigError if it is no simulated user."""
    found: type[BaseInteraction] = find_class(reference, BaseInteraction, "class_name")
    return found


def find_interaction(users: Mapping[str, BaseInteraction], name: str | None) -> BaseInteraction:
    """The user that a row asks for; None is the only one there is. Raises UserError that names those there are."""
    if name is None and len(users) == 1:
        return next(iter(users.values()))
    if name is not None and name in users:
        return users[name]
    hint = did_you_mean(str(name), users)
    raise UserError(
        f"the row asks for the interaction {name!r}{hint} There are: {', '.join(users) or 'none'}; they "
        "are named in rollout.multi_turn.interaction_config_path"
    )


def read_reply(returned: object, name: str) -> tuple[bool, str, float | None]:
    """What a simulated user said. Raises UserError that says what it should have returned."""
    if not isinstance(returned, Sequence) or isinstance(returned, str) or len(returned) not in (3, 4):
        raise UserError(
            f"generate_response of {name} returned {returned!r:.200}; allowed: (should_terminate, text, score, metrics)"
        )
    is_over, text, score = returned[:3]
    if not isinstance(text, str):
        raise UserError(f"generate_response of {name} said {text!r:.200}, which is no text")
    return bool(is_over), text, None if score is None else float(score)
