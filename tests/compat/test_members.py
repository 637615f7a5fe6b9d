"""Arguments and members of the originals' public functions and classes: here, taken and named, or refused by name."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import logging
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ludus.compat.art.backends import TrainConfig
from ludus.compat.art.keys import ITS_OWN
from ludus.compat.members import NotNeeded, takes, with_members
from ludus.compat.names import Table, load
from ludus.errors import ConfigError
from tests.compat.public.calls import FAMILIES, Member, assigned, public_calls, read_calls

MEMBERS = [(family, each) for family in FAMILIES for each in read_calls(family)]
# Functions that hand options on: whose names those are.
THROUGH: Mapping[str, set[str]] = {
    "art:local.backend.LocalBackend.train": {*TrainConfig.model_fields, "normalize_advantages", "ppo"},
    "art:dev.model.InternalModelConfig": ITS_OWN,
}
# Classes there, functions here: their objects' members are tested where such an object can be made.
MADE = {
    "areal:experimental.openai.client.ArealOpenAI",
    "areal:experimental.camel.openai_model.AReaLOpenAICompatibleModel",
    "areal:experimental.camel.openai_model.AReaLTokenCounter",
}

# Classes that are another here: what they inherit is spoken of there.
INHERITS = {"art:serverless.backend.ServerlessBackend": "local.backend.LocalBackend"}

NO_MORE = {"art:model.Model", "art:model.TrainableModel", "art:model.TrainableModel.model_dump"}
"""The first two's `**kwargs` is typed Never, the last's is pydantic's."""
BY_NAME = "given by name"
"""In the condition of a name: its arguments have no place."""


def ours(family: str, each: Member) -> Any:
    root = each.name.partition(".")[0]
    return load(Table.of(family).names(each.module)[root])


def whole(each: Member) -> str:
    return f"{each.module}.{each.name}".lstrip(".")


def said(family: str) -> set[str]:
    table = Table.of(family)
    return {*table.unneeded_members, *table.refused_members}


def has_member(cls: Any, name: str) -> bool:
    """Objects of it have the attribute: of the class, declared, or given by `__init__`."""
    if name in getattr(cls, "model_fields", ()) or hasattr(cls, name):
        return True
    for each in cls.__mro__ if inspect.isclass(cls) else ():
        own = vars(each)
        if name in own.get("__annotations__", {}):
            return True
        if each.__module__.startswith("ludus.") and "__init__" in own and not dataclasses.is_dataclass(each):
            source = textwrap.dedent(inspect.getsource(inspect.unwrap(own["__init__"])))
            if name in assigned(ast.parse(source)):
                return True
    return False


def missing(family: str, each: Member) -> Iterator[str]:
    """What of it is neither here nor spoken of."""
    found, (_, _, member), path = ours(family, each), each.name.partition("."), whole(each)
    if member and path in said(family):
        return
    if member and member not in vars(found):
        of = path.removesuffix(f".{member}")
        path = f"{INHERITS.get(f'{family}:{of}', of)}.{member}"
    if member and f"{family}:{path.removesuffix(f'.{member}')}" in MADE:
        return
    if member and not has_member(found, member):
        yield path
        return
    called = getattr(found, member, None) if member else found  # pydantic's fields are no attributes of the class
    if each.arguments is not None and callable(called):
        yield from (f"{path}:{name}" for name in unaccepted(family, path, called, each.arguments))
        yield from (f"{path}:{name}" for name in asked_beside(family, path, called, each.arguments))


def unaccepted(family: str, path: str, called: Any, arguments: tuple[str, ...]) -> Iterator[str]:
    table, parameters = Table.of(family), inspect.signature(called).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    by_position = [
        name for name, each in parameters.items() if name != "self" and each.kind <= each.POSITIONAL_OR_KEYWORD
    ]
    if BY_NAME in table.conditions.get(path, ""):
        arguments = ("*", *arguments)
    starred = next((idx for idx, name in enumerate(arguments) if name.startswith("*")), len(arguments))
    for idx, argument in enumerate(arguments):
        name, is_ignored = argument.lstrip("*"), f"{path}:{argument}" in table.unneeded_members
        if f"{path}:{name}" in table.refused_members:
            starred = idx  # nobody reaches what is behind it by position
            continue
        if argument.startswith("**"):
            is_here = takes_any or f"{family}:{path}" in NO_MORE
        elif argument == "*":
            continue
        elif argument.startswith("*"):
            is_here = f"{family}:{path}" in NO_MORE or inspect.Parameter.VAR_POSITIONAL in kinds
        elif idx < starred and name in parameters:  # in its place, or calls by position mean another
            is_here = by_position[idx : idx + 1] == [name]
        else:
            is_here = name in parameters or (takes_any and (is_ignored or name in THROUGH.get(f"{family}:{path}", ())))
        if not is_here:
            yield argument


def asked_beside(family: str, path: str, called: Any, arguments: tuple[str, ...]) -> Iterator[str]:
    """Parameters that ours asks for and the original has not; of what is refused, which nobody calls, none."""
    table = Table.of(family)
    if arguments[:1] == ("*",) or any(argument.count("*") == 1 < len(argument) for argument in arguments):
        return  # of a record that extends another the other's are not told; those of a list are handed on by place
    if any(f"{path}:{argument}" in table.refused_members for argument in arguments):
        return
    for name, each in inspect.signature(called).parameters.items():
        is_asked = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if is_asked and name != "self" and name not in arguments:
            yield name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_argument_and_member_is_accounted_for(family: str) -> None:
    """None is merely unknown: what a table does not speak of is there, in its place."""
    assert [name for of, each in MEMBERS if of == family for name in missing(family, each)] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tables_speak_of_what_there_is(family: str) -> None:
    """Of members and arguments that the original has, each once."""
    table = Table.of(family)
    known = {whole(each) for of, each in MEMBERS if of == family}
    known |= {
        f"{whole(each)}:{name.lstrip('*')}" for of, each in MEMBERS if of == family for name in each.arguments or ()
    }
    fields = {f"{whole(each)}.{name}" for of, each in MEMBERS if of == family for name in each.arguments or ()}
    assert said(family) - known - fields - {f"local.backend.LocalBackend.train:{name}" for name in OLDER} == set()
    assert not table.unneeded_members.keys() & table.refused_members.keys()


# Options of `train` that only ART's experimental configuration, or an earlier version, has.
OLDER = (
    *("grad_accumulation_sequences", "moe_routing_replay_bundle", "moe_routing_replay_path"),
    *("moe_routing_replay_strict",),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_are_named_where_the_tables_name_them(family: str) -> None:
    """What they stand before looks at each call; ART's `train` and its models look themselves."""
    looking = {"local.backend.LocalBackend.train", "types.TrainConfig", "types.ServerlessTrainResult", "model.Model"}
    looking |= {"experimental.openai.types.InteractionWithTokenLogpReward"}
    for path in {path.partition(":")[0] for path in said(family) if ":" in path} - looking:
        module, name = next(
            (path[: -len(name) - 1], name) for name in _tails(path) if path[: -len(name) - 1] in paths(family)
        )
        root, _, member = name.partition(".")
        found = load(Table.of(family).names(module)[root])
        called = getattr(found, member) if member else found.__init__ if inspect.isclass(found) else found
        assert hasattr(called, "__wrapped__") or member.startswith("_experimental_"), path


def _tails(path: str) -> Iterator[str]:
    parts = path.split(".")
    yield from (".".join(parts[-count:]) for count in (1, 2))


def paths(family: str) -> Mapping[str, Any]:
    return Table.of(family).modules


@pytest.mark.parametrize("family", FAMILIES)
def test_members_say_what_the_tables_say(family: str) -> None:
    """What is refused has no such attribute and says why; what is ignored can be called."""
    table = Table.of(family)
    of_members = [
        (path, why) for path, why in {**table.unneeded_members, **table.refused_members}.items() if ":" not in path
    ]
    for path, why in of_members:
        above, _, member = path.rpartition(".")
        module, _, name = above.rpartition(".")
        cls = load(table.names(module)[name])
        found = inspect.getattr_static(cls, member, None)
        if path in table.unneeded_members:
            assert isinstance(found, NotNeeded) and why in repr(found)
        elif not dataclasses.is_dataclass(cls) or found is not None:
            with pytest.raises(AttributeError, match="is not here") as raised:
                found.__get__(object())  # type: ignore[union-attr]
            assert why in str(raised.value)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"m.f:old": "it is gone", "m.f:fast": "it is fast", "m.C.stop": "nothing runs"}
    refused = {"m.f:cards": "there are none", "m.C.cards": "there are none"}
    made = Table("art", {}, {}, {}, {}, reasons, refused)
    monkeypatch.setattr(Table, "of", lambda _: made)


@pytest.mark.usefixtures("table")
def test_ignored_arguments_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """By position or by name, and only where they say something; refused ones end the call, by name."""

    @takes("art", "m.f")
    def f(a: int, old: int | None = None, **options: Any) -> tuple[int, int]:
        return a, len(options)

    assert f(1) == (1, 0) and f(1, None) == (1, 0) and caplog.messages == []
    assert f(1, 5) == (1, 0) and f(1, old=6, fast=True) == (1, 1) and f(1, 5, fast=True) == (1, 1)
    assert caplog.messages == ["art.m.f ignores old (it is gone)", "art.m.f ignores fast (it is fast)"]
    with pytest.raises(ConfigError, match=r"art\.m\.f does not take cards=3: there are none.*coming-from-art"):
        f(1, cards=3)
    with pytest.raises(TypeError, match="missing 1 required"):
        f()  # type: ignore[call-arg]


@pytest.mark.usefixtures("table")
def test_coroutines_and_classes_are_looked_at_alike(caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine function stays one; a class has the members, and objects have not those that are refused."""

    @takes("art", "m.f")
    async def f(a: int, old: int | None = None) -> int:
        return a

    @with_members("art", "m.C")
    class C:
        pass

    assert inspect.iscoroutinefunction(f) and asyncio.run(f(1, 2)) == 1
    with caplog.at_level(logging.WARNING):
        C().stop()  # type: ignore[attr-defined]
    assert caplog.messages[-1] == "art.m.C.stop does nothing: nothing runs"
    assert not hasattr(C(), "cards") and getattr(C(), "cards", 7) == 7
    with pytest.raises(AttributeError, match=r"art\.m\.C\.cards is not here: there are none"):
        _ = C.cards  # type: ignore[attr-defined]


def test_what_counts_as_a_member(tmp_path: Any) -> None:
    """Arguments in order, the fields of records, properties, what constructors set; nothing with an underscore, nothing
    that others made."""
    (tmp_path / "a.py").write_text(
        "import dataclasses\n"
        "@overload\ndef f(x): ...\ndef f(x, y=1, *, _z=2, **more): ...\n@tool\ndef made(args): ...\n"
        "@dataclasses.dataclass(frozen=True)\nclass R:\n    a: int\n    b: int = 0\n    def m(self, c): ...\n"
        "    @property\n    def p(self): ...\n    @staticmethod\n    def s(d): ...\n    def _q(self): ...\n"
        "class T(Base):\n    k: int\n"
        "class C:\n    n: int\n    K = 1\n"
        "    def __init__(self, a, *rest):\n        self.z, self._w = a, rest\n        self.v: int = 1\n"
        "    @rollout_trace_op\n    async def h(self, i): ...\n    @cached\n    def j(self): ...\n"
    )
    assert [str(each) for each in public_calls(tmp_path, {"a": {"f", "made", "R", "T", "C"}})] == [
        "a: f(x, y, *, _z, **more)",
        *("a: R(a, b)", "a: R.m(c)", "a: R.p", "a: R.s(d)"),
        "a: T(*, k)",
        *("a: C(a, *rest)", "a: C.h(i)", "a: C.n", "a: C.K", "a: C.z", "a: C.v"),
    ]
    assert all(Member.parse(str(each)) == each for _, each in MEMBERS)


def test_what_ours_asks_for_beside_the_original() -> None:
    """A parameter without default that the original has not would break its calls; handed on by place, it is theirs."""

    def ours(a: int, b: int, *, c: int, d: int = 1, **rest: int) -> None: ...

    assert [*asked_beside("art", "m.f", ours, ("a", "**more"))] == ["b", "c"]
    assert [*asked_beside("art", "m.f", ours, ("a", "b", "*", "c"))] == []
    assert [*asked_beside("art", "m.f", ours, ("*args", "**more"))] == []
