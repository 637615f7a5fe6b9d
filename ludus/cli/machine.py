"""`ludus doctor machine`: this machine's hardware, what Ludus uses of it, and what would be faster."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ludus.cli.console import say, say_json, waiting
from ludus.errors import UserError
from ludus.kernels.build import Build

if TYPE_CHECKING:
    from ludus.checks.doctor.machine import MachineReport


def show_machine(*, as_json: bool) -> None:
    """The report as a table, and as one JSON object if asked."""
    try:
        from ludus.checks.doctor.machine import examine_machine
    except ModuleNotFoundError as error:
        raise UserError(f"what computes is not installed: {error.name!r}; pip install 'ludus[train]'") from error
    with waiting("looking at this machine, compiling and measuring what is not known yet"):
        report = examine_machine()
    table = Table.grid(Column(style="dim", min_width=14), Column(overflow="fold", ratio=1), padding=(0, 2, 0, 0))
    for name, value in _rows(report):
        table.add_row(name, Text(value))
    Console(highlight=False).print(table)
    for line in report.advice:
        say(f"[yellow]faster:[/] {line}")
    if as_json:
        say_json(_body(report))


def _rows(report: MachineReport) -> list[tuple[str, str]]:
    machine = report.machine
    whole = "" if machine.whole_cores in (None, machine.cores) else f" ({machine.whole_cores} of them whole)"
    quota = "" if machine.quota == inf else f", of which its control group allows {machine.quota:g}"
    memory = "" if machine.memory_bytes is None else f", {machine.memory_bytes / 2**30:.0f} GB"
    times = report.products
    built: dict[str, list[str]] = {}
    for name, each in report.kernels.items():
        built.setdefault(_how(each), []).append(name)
    return [
        ("processor", f"{machine.processor or 'unknown'}, {machine.cores} cores{whole}{quota}{memory}"),
        ("busy", f"others keep {machine.busy:.1f} cores busy"),
        ("instructions", " ".join(machine.instructions) or "unknown"),
        ("cards", ", ".join(report.cards) or "none"),
        ("torch", f"{report.torch}, its own loops for {report.capability}"),
        ("compiler", report.compiler or "none"),
        *(("kernels", f"{', '.join(names)}: {how}") for how, names in built.items()),
        ("threads", str(report.threads)),
        ("dtype", f"{report.dtype}; bf16 products take {times.ratio:.2f} times as long as fp32's on the processor"),
        ("device", report.device),
        ("demo", "not known for a card" if report.demo is None else report.demo.words),
    ]


def _how(built: Build | str) -> str:
    return " ".join(built.flags) or "plain C++" if isinstance(built, Build) else f"not built, {built}"


def _body(report: MachineReport) -> dict[str, Any]:
    body = asdict(report)
    if report.machine.quota == inf:
        body["machine"]["quota"] = None
    body["machine"]["threads"], body["machine"]["workers"] = report.machine.threads, report.machine.workers
    body["products"]["bf16_takes"] = report.products.ratio
    if report.demo is not None:
        names = ("train_s", "sample_s", "seconds", "steps")
        body["demo"] |= {name: getattr(report.demo, name) for name in names}
    return body
