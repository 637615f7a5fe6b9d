"""The commands of a bench: ours, `python -m ludus.checks.bench.runner BENCH WORK.json`, and those of peers in their own
environments. Ours prints one JSON object, the results, as its last line.

Knows: interpreters, folders, scripts.  Knows not: what they measure.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from pydantic import TypeAdapter

from ludus.checks.bench.machine import card, versions
from ludus.checks.bench.pairs import Runner
from ludus.checks.bench.table import BENCHES
from ludus.checks.bench.workloads import Workload
from ludus.errors import UserError
from ludus.import_strings import import_object

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PEERS_FOLDER = Path(".peers")
"""Environments of the peers, made by bench/peers.sh."""
CHECKOUT = Path(__file__).parents[3]
"""Where peers' scripts, shapes and tests are, which are no part of an installed package."""
_SCRIPTS = CHECKOUT / "bench" / "peers"


def our_runner(bench: str, work: DataclassInstance, name: str = "ludus") -> Runner:
    """The runner of Ludus, in a new process of this interpreter. Settings are checked before anything is measured."""
    if isinstance(work, Workload):
        work.config()
    command = (sys.executable, "-m", "ludus.checks.bench.runner", bench)
    return Runner(
        name, command, asdict(work), "pip install 'ludus[train]' if something is missing, else please report it"
    )


def peer_names(bench: str, peer: str) -> tuple[str, ...]:
    """The peers that `peer` names: the peer of that name, else all whose names begin with it, the default first.

    Raises UserError if there is none.
    """
    known = BENCHES[bench].peers
    names = (peer,) if peer in known else tuple(name for name in known if name.startswith(f"{peer}-"))
    if not names:
        raise UserError(f"--vs {peer} cannot be compared in this bench; known: {', '.join(known)}")
    return names


def peer_runner(peer: str, bench: str, work: DataclassInstance, folder: Path) -> Runner:
    """The runner of a peer, in its environment below `folder`, which bench/peers.sh makes.

    Raises UserError if the peer is unknown, not set up, or if its script is not here.
    """
    name = peer_names(bench, peer)[0]
    script, environment, *arguments = BENCHES[bench].peers[name]
    if not (_SCRIPTS / script).is_file():
        raise UserError(f"the peers' scripts are not in {_SCRIPTS}: run from a checkout of Ludus, `pip install -e .`")
    python = folder / environment / "bin" / "python" if environment else Path(sys.executable)
    if not python.exists():
        raise UserError(f"{name} is not set up, {python} is missing: run bench/peers.sh, or say where with --peers")
    advice = "run bench/peers.sh again" if environment else "pip install 'ludus[train]'"
    return Runner(name, (str(python), str(_SCRIPTS / script), *arguments), asdict(work), advice)


def main() -> None:
    """Run a measurement. Arguments: the name of the bench, the path of its work."""
    bench, file = sys.argv[1:]
    measure = import_object(f"ludus.checks.bench.{BENCHES[bench].measure}")
    work = TypeAdapter(get_type_hints(measure)["work"]).validate_json(Path(file).read_text())
    results = measure(work)
    results = asyncio.run(results) if inspect.iscoroutine(results) else results
    sys.stdout.write(json.dumps({**results, **card(), "versions": versions()}) + "\n")


if __name__ == "__main__":
    main()
