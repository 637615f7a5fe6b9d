"""What came of the cases, for a person: a matrix of topics and protocols, then every failure with what was expected.

Knows: reports, tables.  Knows not: how cases are run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ludus.checks.conformance.case import PROTOCOLS, TOPICS, Protocol, Topic
from ludus.checks.conformance.mutants import MutantReport
from ludus.checks.conformance.run import CaseResult, SuiteReport


def shown(report: SuiteReport) -> RenderableType:
    """The whole report."""
    parts: list[RenderableType] = [matrix(report)]
    parts += [failure(result) for result in report.of("failed")]
    reasons = Counter(result.what for result in report.of("skipped"))
    parts += [Text(f"{number} {reason}", style="dim") for reason, number in sorted(reasons.items())]
    counts = (
        f"{len(report.of('passed'))} passed, {len(report.of('failed'))} failed, {len(report.of('skipped'))} skipped"
    )
    parts.append(Text(f"{counts} in {report.seconds:.1f} s", style="bold green" if report.ok else "bold red"))
    return Group(*parts)


def matrix(report: SuiteReport) -> Table:
    """Topics down, protocols across: how many cases passed of those that were run."""
    protocols = [name for name in PROTOCOLS if any(result.case.protocol == name for result in report.results)]
    topics = [name for name in TOPICS if any(result.case.topic == name for result in report.results)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", style="dim")
    for protocol in protocols:
        table.add_column(protocol, justify="right")
    for topic in topics:
        table.add_row(topic, *(_cell(_of(report, protocol, topic)) for protocol in protocols))
    return table


def _of(report: SuiteReport, protocol: Protocol, topic: Topic) -> list[CaseResult]:
    return [result for result in report.results if (result.case.protocol, result.case.topic) == (protocol, topic)]


def _cell(results: Sequence[CaseResult]) -> Text:
    if not results:
        return Text("")
    finished = [result for result in results if result.verdict != "skipped"]
    if not finished:
        return Text("not offered", style="dim")
    passed = sum(result.verdict == "passed" for result in finished)
    if passed == len(finished):
        return Text(str(passed), style="green")
    return Text(f"{passed} of {len(finished)}", style="red")


def failure(result: CaseResult) -> Text:
    """One failed case in four lines."""
    text = Text()
    text.append(f"\n{result.case.name}", style="bold red")
    for label, value in (
        ("law", result.case.law),
        ("looked at", result.what),
        ("expected", result.expected),
        ("got", result.got),
    ):
        text.append(f"\n  {label:10}", style="dim")
        text.append(value)
    return text


def mutants_shown(report: MutantReport) -> RenderableType:
    """A line for every fault, with the case that saw it."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("fault", "the server", "caught by", "cases"):
        table.add_column(column)
    for one in report.results:
        by = Text("missed", style="bold red") if one.by is None else Text(one.by.case.name, style="green")
        table.add_row(one.fault.name, Text(one.fault.says, style="dim"), by, str(one.num_played))
    lines: Iterable[RenderableType] = (failure(result) for result in report.whole.of("failed"))
    counts = f"{report.num_caught} of {len(report.results)} faults caught in {report.seconds:.1f} s"
    return Group(table, *lines, Text(counts, style="bold green" if report.ok else "bold red"))
