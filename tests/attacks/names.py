"""Every attack by its name, with what is expected of it: the list in docs/promises.md is made of this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.attacks import programs, test_agents, test_foreign_files, test_pages, test_templates, test_traversal
from tests.cluster.test_foreign import NUMBERS_OF_JSON
from tests.gateway.test_disconnect import BODIES as DIALECTS
from tests.http import test_api, test_connection, test_guard
from tests.http.foreign import NUMBERS
from tests.test_network import STRANGERS


@dataclass(frozen=True)
class Attacks:
    """Of one kind."""

    what: str
    expected: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        """A line of the page."""
        return f"- **{self.what}** ({len(self.names)}), {self.expected}: {' · '.join(self.names)}."


def attacks(what: str, expected: str, names: Iterable[str]) -> Attacks:
    return Attacks(what, expected, tuple(names))


def shown(number: str) -> str:
    return "nothing" if not number else f"`{number}`" if len(number) < 20 else f"{len(number):,} digits"


REFUSED = "each raises an exception in the program, and nothing outside changes"
DISCONNECTS = [f"{path[1:]}, {form}" for path in sorted(DIALECTS) for form in ("streamed", "whole")]
LISTS = (
    attacks("Files of the machine, from the sandbox", REFUSED, programs.FILES),
    attacks("Mounts and namespaces, from the sandbox", REFUSED, programs.MOUNTS),
    attacks("Networks, from the sandbox", f"{REFUSED}; no port or socket was reached", programs.NETWORK),
    attacks("Processes, from the sandbox", REFUSED, programs.PROCESSES),
    attacks("The kernel, from the sandbox", REFUSED, programs.KERNEL),
    attacks("Resource limits, in the sandbox", "each is stopped before its last line", programs.TOTALS),
    attacks(
        "An agent with a worker's key",
        "403, 404 or 405, no key of another process in the answer, and the run continues",
        (f"{method} {path}" for method, path in test_agents.OPERATIONS),
    ),
    attacks("An agent with the run's key", "403, and no key of another process", test_agents.OF_PROCESSES),
    attacks("An agent's environment", "contains no secret of the run, not even in `/proc`", test_agents.SECRETS),
    attacks(
        "Routes without keys", "401 from every route of every server except probes, before a body is read", STRANGERS
    ),
    attacks(
        "Endless headers",
        "the connection is closed after a few hundred KB of 200 MB, and other clients are served",
        test_connection.ENDLESS,
    ),
    attacks(
        "Slow and silent clients",
        "408, and the connection is closed",
        (*test_connection.SLOW, "an answer that is not taken"),
    ),
    attacks("Host", "421: a foreign name that resolves to this server", test_guard.FOREIGN_NAMES),
    attacks("Invalid Host", "400", (repr(name) for name in test_guard.NO_NAMES)),
    attacks("Origin", "403, with a key and without", test_guard.FOREIGN_PAGES),
    attacks("Forms", "415", (kind or "no type" for kind in test_guard.FORMS)),
    attacks("Bodies", "400 or 413, with our own message", test_api.BODIES),
    attacks("Numbers in headers, queries and paths of every route", "never a 500", map(shown, NUMBERS)),
    attacks("Numbers in bodies", "never a 500", map(shown, NUMBERS_OF_JSON)),
    attacks(
        "Clients that disconnect at each piece of an answer, inside it and after it",
        "sampled tokens are recorded once, and the ledger balances",
        DISCONNECTS,
    ),
    attacks(
        "Path traversal, in every route that takes a name, and as a run's name",
        "not found, and nothing outside is read or written",
        test_traversal.NAMES,
    ),
    attacks("Templates of models", "an error, or nothing of this process in the text", test_templates.REACHES),
    attacks(
        "Text of a model, in a report and on a terminal",
        "data: it creates no element of the page and moves no cursor",
        test_pages.TEXTS,
    ),
    attacks("Archives of models", "one file, at the requested place, or an error", test_foreign_files.MEMBERS),
    attacks("Foreign models", "an error in one sentence, and no code runs", test_foreign_files.MODELS),
    attacks(
        "Foreign configurations and rows",
        "an error in one sentence within seconds, and no code runs",
        (*test_foreign_files.CONFIGURATIONS, *test_foreign_files.ROWS),
    ),
    attacks("Foreign runs", "`report` and `export` show what can be read, or say why not", test_foreign_files.RUNS),
)
