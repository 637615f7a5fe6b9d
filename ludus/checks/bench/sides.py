"""Where the two sides of a comparison live: ours in this interpreter, peers in environments of their own.

Knows: interpreters, folders, scripts.  Knows not: what they measure.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ludus.checks.bench.pairs import Side
from ludus.errors import UserError

PEERS_FOLDER = Path(".peers")
"""Environments of the peers, made by bench/peers.sh."""
_SCRIPTS = Path(__file__).parents[3] / "bench" / "peers"
# Each peer's script, and the environment below PEERS_FOLDER that it needs. None: that of Ludus itself.
_PEERS: dict[str, tuple[str, str | None]] = {
    "vllm sample": ("vllm_sample.py", "vllm"),
    "transformers sample": ("transformers_sample.py", None),
    "transformers-batching sample": ("transformers_batching_sample.py", None),
    "transformers train": ("transformers_train.py", None),
    "trl step": ("trl_step.py", "trl"),
    "litellm gateway": ("proxy_gateway.py", "litellm"),
    "rllm gateway": ("proxy_gateway.py", "rllm"),
}


def our_side(bench: str) -> Side:
    """Ludus, in a fresh process of this interpreter."""
    command = (sys.executable, "-m", "ludus.checks.bench.side", bench)
    return Side("ludus", command, advice="pip install 'ludus[train]' if something is missing, else please report it")


def peer_side(peer: str, bench: str, folder: Path) -> Side:
    """A peer, in the environment below `folder` that bench/peers.sh made for it.

    Raises UserError if the peer is unknown, not set up, or if its script is not here.
    """
    known = [name.split()[0] for name in _PEERS if name.split()[1] == bench]
    if peer not in known:
        raise UserError(f"--vs {peer} cannot be compared in this bench; known: {', '.join(known)}")
    script, environment = _PEERS[f"{peer} {bench}"]
    if not (_SCRIPTS / script).is_file():
        raise UserError(f"the peers' scripts are not in {_SCRIPTS}: run from a checkout of Ludus, `pip install -e .`")
    python = Path(sys.executable) if environment is None else folder / environment / "bin" / "python"
    if not python.exists():
        raise UserError(f"{peer} is not set up, {python} is missing: run bench/peers.sh, or say where with --peers")
    advice = "pip install 'ludus[train]'" if environment is None else "run bench/peers.sh again"
    return Side(peer, (str(python), str(_SCRIPTS / script)), advice=advice)
