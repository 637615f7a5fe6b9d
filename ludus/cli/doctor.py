"""`ludus doctor`: whether a chat template keeps sampled tokens unchanged in later prompts, and why if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option

from ludus.checks.doctor.construct import EXPLANATIONS
from ludus.checks.doctor.examine import Counterexample, Examination, Row, examine, subject_of, subject_of_source
from ludus.checks.doctor.replay import Subject
from ludus.cli.console import counting, end, plain_table, say_json
from ludus.errors import UserError
from ludus.models.resolve import resolve_tokenizer
from ludus.settings import with_overrides
from ludus.text.chat import ChatText, is_template_source, shipped_templates
from ludus.types import Message

_COLOURS = {"exact": "green", "forks": "red", "depends": "yellow", "refused": "dim", "broken": "bold red"}


def doctor(
    subject: Annotated[
        str,
        Argument(
            metavar="MODEL_OR_TEMPLATE",
            help="A model's name or folder; a .jinja file, a shipped template; or 'machine': this one.",
        ),
    ],
    template: Annotated[str | None, Option(metavar="TEMPLATE", help="Instead of a model's own.")] = None,
    parser: Annotated[str, Option(help="Who reads tool calls, as `model.tool_parser`.")] = "auto",
    variables: Annotated[list[str] | None, Option("--set", metavar="NAME=VALUE", help="Read by the template.")] = None,
    conversations: Annotated[int, Option(min=1, help="Random conversations to play.")] = 1000,
    seed: Annotated[int, Option(help="All conversations come from this number.")] = 0,
    allow: Annotated[list[str] | None, Option(metavar="REASON", help="A fork to accept: name or reason.")] = None,
    as_json: Annotated[bool, Option("--json", help="Add one JSON object as the last line.")] = False,
) -> None:
    """Does a chat template keep what was sampled, turn after turn?

    Random conversations with thinking, calls, results, empty texts and blanks
    are played as the recorder plays them. For each kind of transition you see
    whether something is appended to the reply, and what, or why the next
    prompt has to be tokenized anew, with the smallest conversation that does
    it and the tag of the template that decides it.
    `ludus doctor machine` says what this machine is, what is used of it, and
    what would make Ludus faster here.

    [bold]Example:[/]  ludus doctor smollm2-135m
    [bold]Example:[/]  ludus doctor qwen3.jinja --set enable_thinking=false --allow reasoning_stripped
    """
    if subject == "machine":
        import_module("ludus.cli.machine").show_machine(as_json=as_json)
        return
    allowed = allow or []
    if unknown := next((name for name in allowed if name not in (*EXPLANATIONS, "template")), None):
        raise UserError(f"--allow {unknown!r} is no fork; known: {', '.join(EXPLANATIONS)}, template.")
    examined = _subject(subject, template, parser, with_overrides({}, variables or ()))
    with counting("playing conversations", conversations, quiet=as_json) as bar:
        found = examine(
            examined,
            name=Path(subject).name if Path(subject).is_file() else subject,
            num_conversations=conversations,
            seed=seed,
            on_conversation=bar.reach,
        )
    Console(highlight=False).print(_report(found, allowed))
    is_ok = found.is_exact(allowed)
    if as_json:
        say_json({**asdict(found), "counts": found.counts, "ok": is_ok})
    end(is_ok)


# What is examined


def _subject(name: str, template: str | None, parser: str, variables: Mapping[str, Any]) -> Subject:
    path = Path(name).expanduser()
    source = shipped_templates().get(name)
    if source is None and path.is_file():
        source = path.read_text(encoding="utf-8")
    if source is None:
        text = ChatText.load(resolve_tokenizer(name), chat_template=template, tool_parser=parser)
        return subject_of(text, template_kwargs=variables)
    if template is not None:
        raise UserError(f"--template stands in the place of a model's own, and {name!r} is a template. Leave it out.")
    if not is_template_source(source):
        raise UserError(f"{name!r} is no chat template: it has no Jinja tag. Pass a .jinja file or a model's folder.")
    return subject_of_source(source, tool_parser=parser, template_kwargs=variables)


# What is shown


def _report(found: Examination, allowed: Sequence[str]) -> Group:
    parts: list[RenderableType] = [
        Text.assemble((found.name, "bold"), f"  {found.num_conversations:,} conversations, seed {found.seed}"),
        Text(),
        _facts(found),
        Text(),
        _transitions(found),
    ]
    if any(row.appended for row in found.transitions):
        parts += [Text("\nwhat is appended after the reply", style="bold"), _plan(found)]
    for proof in found.forks:
        parts += [Text(), *_proof(proof, is_allowed=proof.construct in allowed or proof.reason in allowed)]
    return Group(*parts, Text(), _verdict(found, allowed))


def _facts(found: Examination) -> Table:
    names = ("system", "late_system", "tools", "calls", "parallel_calls", "text_beside_calls", "results", "thinking")
    kinds = {name.replace("_", " "): getattr(found.able, name) for name in names}
    received = {each: [name for name, how in kinds.items() if how == each] for each in ("shown", "dropped", "refused")}
    rows = [(reception, ", ".join(what)) for reception, what in received.items() if what]
    is_stopped = not found.closing or found.closing in found.stops
    other = f"but the template closes an answer by {found.closing!r}, which is no stop token of the model"
    rows += [
        ("generation prompt", repr(found.generation_prompt)),
        ("a reply ends with", ", ".join(map(repr, found.stops)) or "nothing that the template shows"),
        *([] if is_stopped else [("", other)]),
        ("reads", ", ".join(found.variables) or "no variables of its own"),
        ("parser of calls", _parser(found)),
        ("rendering resumes", "yes" if not found.not_resumable else f"no: {found.not_resumable[0]}"),
    ]
    return _table(rows)


def _parser(found: Examination) -> str:
    if not found.num_written_calls:
        return f"{found.parser}; the template shows no calls"
    read = f"{found.parser}, reads {found.num_read_calls:,} of {found.num_written_calls:,} replies as they were meant"
    return read if found.unread is None else f"{read}; not {found.unread.text!r}"


def _transitions(found: Examination) -> Table:
    numbers = ("exact", "forks", "refused")
    table = plain_table("transition", *numbers, "verdict", right=numbers)
    for row in found.transitions:
        counts = (row.counts["exact"], sum(row.forks.values()), row.counts["refused"])
        cells = [f"{number:,}" if number else "–" for number in counts]
        table.add_row(row.kind, *cells, _row_verdict(row))
    return table


def _row_verdict(row: Row) -> Text:
    words = {"exact": "always exact", "forks": "always forks", "broken": "BROKEN, please report"}
    forks = f": {', '.join(row.forks)}" if row.forks else ""
    return Text.assemble((words.get(row.verdict, row.verdict), _COLOURS[row.verdict]), (forks, "dim"))


def _plan(found: Examination) -> Table:
    """A table of the texts that are appended after replies, each shown once, for the simplest kind of transition."""
    rows: list[tuple[str, str]] = []
    for row in sorted(found.transitions, key=lambda row: len(row.kind)):
        if row.appended and "parallel" not in row.kind and repr(row.appended) not in dict(rows).values():
            rows.append((row.kind, repr(row.appended)))
    return _table(rows)


def _proof(proof: Counterexample, *, is_allowed: bool) -> list[RenderableType]:
    heading = Text.assemble(
        (proof.construct, "bold yellow" if is_allowed else "bold red"),
        f": {EXPLANATIONS[proof.construct]}",
        (f" (recorded as {proof.reason}{', allowed' if is_allowed else ''})", "dim"),
    )
    parting, tag = proof.divergence, proof.divergence.tag
    rows: list[tuple[str, str]] = [(message.role, _written(message)) for message in proof.messages]
    rows += [("", ""), ("both begin", f"…{parting.before!r}")]
    rows += [("the model saw", repr(parting.seen)), ("now it is", repr(parting.shown))]
    rows += [] if tag is None else [("decided by", f"line {tag.line}: {tag.text}")]
    return [heading, Padding(_table(rows), (0, 0, 0, 2))]


def _written(message: Message) -> str:
    thought = "" if message.reasoning is None else f"(thinks {message.reasoning!r}) "
    calls = "".join(f" → {call.name}({call.arguments})" for call in message.tool_calls)
    return f"{thought}{'' if message.content is None else repr(message.content)}{calls}"


def _verdict(found: Examination, allowed: Sequence[str]) -> Text:
    others = "".join(f", {count:,} {name}" for name, count in found.counts.items() if name != "exact")
    exact = f"{found.counts.get('exact', 0):,} of {sum(found.counts.values()):,} transitions are exact"
    word = ("ok", "bold green") if found.is_exact(allowed) else ("FORKS", "bold red")
    return Text.assemble(f"{exact}{others}. ", word)


def _table(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(Column(style="dim", min_width=14), Column(overflow="fold", ratio=1), padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table
