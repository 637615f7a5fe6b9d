"""Measures how the cost of a session grows with its turns: many tool-calling turns compared with half as many.

Knows: the gateway, a client that sends its whole history with every turn, counters.  Knows not: terminals.

If no work is repeated, twice the turns cost about twice as much. Only the JSON that a client sends grows with the
square of its turns, so the time of decoding it is subtracted from the gateway's.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from ludus.checks.bench.workloads import TurnsWork
from ludus.engines.base import Engine
from ludus.engines.lease import ComputeLease
from ludus.engines.local.engine import LocalEngine
from ludus.engines.local.settings import InferenceSettings
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.episodes.stats import SessionStats
from ludus.gateway.server import GatewayServer
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.models.untrained import make_untrained
from ludus.text.chat import ChatText

TEMPLATE = "chatml-tools"
# Largest allowed ratio for twice the turns. Above 2, as later turns have longer numbers; time is noisy as well.
MOST_OF_COUNTER = 2.1
MOST_OF_TIME = 2.5
MAX_CONTEXT = 2**20
NUM_SAMPLED = 4  # tokens of the tiny model in each turn: enough for the next prompt to extend sampled tokens
# A model of one layer, with room for long sessions.
_TINY: Mapping[str, Any] = {
    "model_type": "llama",
    **dict.fromkeys(("hidden_size", "intermediate_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1),
    "max_position_embeddings": MAX_CONTEXT,
    "tie_word_embeddings": True,
}
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks a key up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}

Row = Mapping[str, Any]


def measure_turns(work: TurnsWork) -> dict[str, Any]:
    """For each counter its values `short` and `long`, their `ratio`, and the `most` that is allowed; and the same as
    rows, each with its name under `counter`.

    All counters are measured with scripted answers, except prefilled tokens, which the engine of a tiny random model
    counts. Times are medians of the pairs, with the smallest and the largest ratio.
    """
    folder, short, long = Path(work.model), work.short, work.long
    text = ChatText.load(folder, chat_template=TEMPLATE)
    with GatewayServer(SessionKeys()) as server:
        _play(server, text, 2)  # warm-up: first requests of a process are slower
        played = [(_play(server, text, short), _play(server, text, long)) for _ in range(work.pairs)]
        prefilled = _prefilled(server, folder, text, short, long)
    counters = [name for name in played[0][0] if name != "gateway_cpu_s"]
    counted = {
        **{name: _counted(*(session[name] for session in played[0]), most=MOST_OF_COUNTER) for name in counters},
        **prefilled,
        "gateway_cpu_s": _time([(one["gateway_cpu_s"], other["gateway_cpu_s"]) for one, other in played]),
    }
    rows = [{"counter": name, **each} for name, each in counted.items()]
    lengths = {"short": short, "long": long}
    return {"bench": "turns", "turns": lengths, **counted, "rows": rows}


def _counted(short: float, long: float, *, most: float) -> dict[str, float]:
    return {"short": short, "long": long, "ratio": long / short, "most": most}


def _time(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Median times of the sessions of each length, and the median of the pairs' ratios."""
    ratios = [long / short for short, long in pairs]
    medians = [statistics.median(seconds) for seconds in zip(*pairs, strict=True)]
    spread = {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return {**_counted(medians[0], medians[1], most=MOST_OF_TIME), **spread}


# Two sessions


def _play(server: GatewayServer, text: ChatText, num_turns: int) -> dict[str, float]:
    """The counters of a session with a tool call in every turn."""
    engine = ScriptedEngine(map(_call, range(num_turns)), text.tokenizer, context_length=MAX_CONTEXT)
    before = server.stats()
    seen = _talk(server, engine, text, num_turns)
    after = server.stats()
    return {
        "tokenizer_chars": seen.num_encoded_chars,
        "graph_nodes": seen.num_nodes,
        "rendered_messages": seen.num_rendered_messages,
        "read_messages": after.num_new_messages - before.num_new_messages,
        "gateway_cpu_s": (after.cpu_s - after.json_s) - (before.cpu_s - before.json_s),
    }


def _prefilled(server: GatewayServer, folder: Path, text: ChatText, short: int, long: int) -> dict[str, Row]:
    """Prompt tokens that are prefilled in a session of each length."""
    counts = []
    with tempfile.TemporaryDirectory(prefix="ludus-turns-") as scratch:
        shape, tiny = Path(scratch) / "config.json", Path(scratch) / "model"
        shape.write_text(json.dumps({**_TINY, "vocab_size": text.tokenizer.vocab_size}))
        make_untrained(shape, tiny, tokenizer=str(folder), seed=0)
        model = load_model(ModelSettings(path=str(tiny)))
    for num_turns in (short, long):
        engine = LocalEngine(model, text.tokenizer, InferenceSettings(), lease=ComputeLease(), seed=0)
        _talk(server, engine, text, num_turns, max_tokens=NUM_SAMPLED)
        counts.append(engine.stats().num_prefilled_tokens)
        asyncio.run(engine.close())
    return {"prefilled_tokens": _counted(counts[0], counts[1], most=MOST_OF_COUNTER)}


def _talk(server: GatewayServer, engine: Engine, text: ChatText, num_turns: int, **fields: Any) -> SessionStats:
    """The stats of a new session on `engine`."""
    session = Recorder(engine, text).open(SessionSpec("turns"))
    secret = server.keys.add(session)
    _look_up(server.url_for(secret), num_turns, **fields)
    server.keys.remove(secret)
    seen = session.stats()
    assert not seen.forks, f"a session that only goes on has forked: {seen.forks}"
    return seen


def _call(idx: int) -> str:
    return f'Key {idx} is next.\n<tool_call>\n{{"name": "lookup", "arguments": {{"key": "key-{idx}"}}}}\n</tool_call>'


def _look_up(url: str, num_turns: int, **fields: Any) -> None:
    """An agent that calls a tool in every turn, over one connection."""
    messages: list[Mapping[str, Any]] = [
        {"role": "system", "content": "You look keys up, one after the other."},
        {"role": "user", "content": "Look up every key there is."},
    ]
    with httpx.Client(base_url=url, trust_env=False, timeout=None) as client:
        for idx in range(num_turns):
            body = {"model": "default", "messages": messages, "tools": [TOOL], **fields}
            reply = client.post("chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]
            call_id = reply["tool_calls"][0]["id"] if reply.get("tool_calls") else "call"
            found = f"The value of key-{idx} is {idx * idx}; it lies on shelf {idx % 7}."
            messages += [reply, {"role": "tool", "tool_call_id": call_id, "content": found}]
