"""`config_class`: a user's own dataclass that adds parameters to the configuration, and makes the agent from them.

Knows: dataclasses, which keys belong to which class.  Knows not: what an agent does with its parameters.
Invariant: a key belongs to the configuration or to the class, never to both; one that belongs to neither is an error
that names the nearest.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pydantic

from ludus.config import Config, ConfigT
from ludus.errors import ConfigError
from ludus.import_strings import import_object
from ludus.settings import (
    Path_,
    did_you_mean,
    leaves,
    merged,
    nearest,
    parse_override,
    read_yaml,
    with_value,
)

_OWN_NAME = "config"
_CLASS = "config_class"
_KWARGS = "config_kwargs"


@dataclasses.dataclass
class ExperimentConfig:
    """Base of a `config_class`. Every key of the configuration is an attribute: `self.model.path`, `self.seed`."""

    @classmethod
    def renamed(cls, path: Path_, value: Any) -> Iterable[tuple[Path_, Any]]:
        """Translates a key that was given, such as one of another framework, into keys of the configuration."""
        return ((path, value),)

    @property
    def agent(self) -> Any:
        """The agent, of any kind."""
        raise NotImplementedError(f"{type(self).__qualname__} must define the property `agent`")

    @property
    def env(self) -> Any:
        """The environment, passed to the agent as `env`. None: it needs none."""
        return None

    def settings(self) -> Mapping[str, Any]:
        """Keys of the configuration, nested, that follow from the class's own parameters. Keys that the user gives take
        precedence."""
        return {}

    def __getattr__(self, name: str) -> Any:
        config = self.__dict__.get(_OWN_NAME)
        if config is not None and name in type(config).model_fields:
            return getattr(config, name)
        raise AttributeError(f"{type(self).__qualname__} has no parameter {name!r}, nor has the configuration")


def load_config(
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    *,
    config_class: str | None = None,
    base: type[ConfigT],
) -> ConfigT:
    """The configuration in a YAML file (None: the defaults) with `a.b=value` overrides.

    config_class: import string of a dataclass that extends the configuration; the file's values take precedence over
    its own. None: the one that the file or an override names, if any.
    base: the class of the configuration.
    Raises UserError if the file or the class is missing, ConfigError for an unknown key or a value that cannot act.
    """
    data = {} if path is None else read_yaml(Path(path))
    keys = [parse_override(override) for override in overrides]
    named = next((value for key, value in reversed(keys) if key == (_CLASS,)), data.get(_CLASS))
    config_class = config_class or named
    if config_class is None:
        return base.load(path, overrides)
    cls = _import_class(config_class)
    renamed = cls.renamed if issubclass(cls, ExperimentConfig) else ExperimentConfig.renamed
    given_keys, data = [*leaves(data), *keys], {}
    for key, value in given_keys:
        for own_key, own_value in renamed(key, value):
            data = with_value(data, own_key, own_value, whole=".".join(map(str, key)))
    own_names = {field.name for field in dataclasses.fields(cls)} - set(base.model_fields)
    own = {**(data.pop(_KWARGS, None) or {}), **{name: data[name] for name in data if name in own_names}}
    given = {name: value for name, value in data.items() if name not in own_names and name != _CLASS}
    for name in (*own, *given):
        if name not in base.model_fields and name not in own_names:
            hint = did_you_mean(name, [*own_names, *base.model_fields])
            known = ", ".join(sorted(own_names)) or "none"
            raise ConfigError(f"unknown key {name!r}{hint} Parameters of {config_class}: {known}")
    experiment = _made(cls, own)
    # A field of the class with the name of a key gives that key another default.
    named_alike = [field.name for field in dataclasses.fields(cls) if field.name in base.model_fields]
    defaults = {name: getattr(experiment, name) for name in named_alike}
    settings = experiment.settings() if isinstance(experiment, ExperimentConfig) else {}
    values = merged(merged(defaults, settings), given)
    return base.of({**values, _CLASS: config_class, _KWARGS: own})


def open_experiment(config: Config) -> Any:
    """The user's object, made of a configuration that names its class; the configuration's keys are its attributes."""
    assert config.config_class is not None, "the configuration names a class"
    experiment = _made(_import_class(config.config_class), config.config_kwargs)
    for field in dataclasses.fields(experiment):
        if field.name in type(config).model_fields:
            object.__setattr__(experiment, field.name, getattr(config, field.name))
    object.__setattr__(experiment, _OWN_NAME, config)
    return experiment


def _import_class(reference: str) -> type[Any]:
    cls = import_object(reference)
    if not (inspect.isclass(cls) and dataclasses.is_dataclass(cls)):
        raise ConfigError(f"config_class={reference!r} is {cls!r:.100}; it must be a class with @dataclass")
    if not hasattr(cls, "agent"):
        raise ConfigError(
            f"config_class={reference!r} must have a property `agent`, and `env` where the agent needs it"
        )
    return cls


def _made(cls: type[Any], own: Mapping[str, Any]) -> Any:
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        has_default = not (field.default is field.default_factory is dataclasses.MISSING)
        if field.init and not has_default and field.name not in own:
            raise ConfigError(f"{cls.__qualname__} needs a value for {field.name!r}: give {field.name}=…")
    return cls(**{name: validated(name, hints[name], value) for name, value in own.items()})


def validated(name: str, hint: Any, value: Any) -> Any:
    """The value converted to the field's type: numbers, and mappings to the dataclasses that they describe."""
    _check_keys(name, hint, value)
    try:
        try:
            adapter = pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
        except pydantic.PydanticUserError:  # dataclasses and models have a config of their own
            adapter = pydantic.TypeAdapter(hint)
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        detail = error.errors()[0]
        where = ".".join((name, *map(str, detail["loc"])))
        raise ConfigError(f"{where}={detail['input']!r} is not possible: {detail['msg']}") from None


def _check_keys(where: str, hint: Any, value: Any) -> None:
    """Raises ConfigError for a key that the dataclass of a field does not have."""
    if not (isinstance(value, Mapping) and inspect.isclass(hint) and dataclasses.is_dataclass(hint)):
        return
    hints = get_type_hints(hint)
    known = [field.name for field in dataclasses.fields(hint)]
    for key, below in value.items():
        if key not in known:
            best = nearest(str(key), known)
            likely = f"; did you mean '{where}.{best}'?" if best else "."
            raise ConfigError(f"unknown key '{where}.{key}'{likely} Known below {where!r}: {', '.join(known)}")
        _check_keys(f"{where}.{key}", hints[key], below)
