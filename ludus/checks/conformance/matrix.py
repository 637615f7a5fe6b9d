"""Shows the results of the cases: a matrix of topics and protocols, then every failure in detail.

Knows: reports, tables.  Knows not: how cases are run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ludus.checks.conformance.case import PROTOCOLS, TOPICS
from ludus.checks.conformance.mutants import MutantReport
from ludus.checks.conformance.run import VERDICTS, CaseResult, SuiteReport


def shown(report: SuiteReport) -> RenderableType:
    """The whole report."""
    parts: list[RenderableType] = [matrix(report)]
    parts += [failure(result) for result in report.of("failed")]
    reasons = Counter(result.what for result in report.of("skipped"))
    parts += [Text(f"{number} {reason}", style="dim") for reason, number in sorted(reasons.items())]
    counts = ", ".join(f"{len(report.of(verdict))} {verdict}" for verdict in VERDICTS)
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
    cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in report.results:
        cells[result.case.topic, result.case.protocol][result.verdict] += 1
    for topic in topics:
        table.add_row(topic, *(_cell(cells[topic, protocol]) for protocol in protocols))
    return table


def _cell(verdicts: Counter[str]) -> Text:
    if verdicts["failed"]:
        return Text(f"{verdicts['passed']} of {verdicts['passed'] + verdicts['failed']}", style="red")
    if verdicts["passed"]:
        return Text(str(verdicts["passed"]), style="green")
    return Text("not offered" if verdicts["skipped"] else "", style="dim")


def failure(result: CaseResult) -> Text:
    """One failed case in four lines."""
    lines = {"law": result.case.law, "looked at": result.what, "expected": result.expected, "got": result.got}
    styled = (part for label, value in lines.items() for part in ((f"\n  {label:10}", "dim"), value))
    return Text.assemble((f"\n{result.case.name}", "bold red"), *styled)


def mutants_shown(report: MutantReport) -> RenderableType:
    """A line for every fault, with the case that detected it."""
    table = Table("fault", "the server", "caught by", "cases", box=None, pad_edge=False, header_style="dim")
    for one in report.results:
        by = Text("missed", style="bold red") if one.by is None else Text(one.by.case.name, style="green")
        table.add_row(one.fault.name, Text(one.fault.effect, style="dim"), by, str(one.num_played))
    lines: Iterable[RenderableType] = (failure(result) for result in report.whole.of("failed"))
    counts = f"{report.num_caught} of {len(report.results)} faults caught in {report.seconds:.1f} s"
    return Group(table, *lines, Text(counts, style="bold green" if report.ok else "bold red"))
