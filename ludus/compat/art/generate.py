"""Generates tasks for agents with a chat model, from the tools that the agents will have.

Knows: the prompt, how answers are parsed.  Knows not: MCP's protocol, HTTP.
Invariant: returns exactly the requested number of different scenarios, or raises an error that shows the answer.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ludus.compat import overrides
from ludus.compat.art.scenario import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool
from ludus.errors import BackendError, UserError
from ludus.rewards.chat.base import ChatModel, Json
from ludus.rewards.chat.http import HttpChatModel
from ludus.rewards.chat.resolve import resolve_chat_model
from ludus.rewards.providers import NO_KEY, PROVIDERS, Endpoint
from ludus.types import ToolSpec

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "openai/gpt-4.1-mini"
DEFAULT_BASE_URL = "https://openrouter.ai/api/v1"
MOST_PER_CALL = 40
"""If asked for more at once, models return fewer, or are cut off."""
MOST_FRUITLESS_CALLS = 3

_PROMPT = """\
Think up {count} tasks that somebody might give to an agent with the tools below. They are to train and to test it.

<tools>
{tools}
</tools>
<resources>
{resources}
</resources>

- Each task can be done with these tools alone, and does not say which of them to use.
- They differ in what they are about, in the tools they need, and in how hard they are.
- They sound like people who want something done, with the names, numbers and dates that they would know.
- Each asks for an answer in which one can see whether it was done: a finding, a summary, a report.
- `difficulty` is 1 for a task of one call, up to 5 for one of many steps that build on each other.
{more}
Answer with JSON alone: {{"scenarios": [{{"task": "<the task>", "difficulty": <1 to 5>}}, ...]}}, {count} entries."""


def _object(**properties: Json) -> Json:
    """The schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_SCENARIO = _object(task={"type": "string"}, difficulty={"type": "integer"})
_SCHEMA = _object(scenarios={"type": "array", "items": _SCENARIO})


async def generate_scenarios(
    tools: Iterable[Any],
    resources: Iterable[Any] = (),
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str | ChatModel = DEFAULT_MODEL,
    generator_api_key: str | None = None,
    generator_base_url: str | None = DEFAULT_BASE_URL,
) -> GeneratedScenarioCollection:
    """`num_scenarios` tasks for an agent with these tools.

    tools, resources: `MCPTool`s and `MCPResource`s, mappings, what a client of the `mcp` package lists, or the `specs`
    of an `EpisodeTools`.
    generator_model: the model's name at `generator_base_url`, or, if that is None or empty, `provider/model`.
    generator_api_key: None: OPENROUTER_API_KEY of the environment for OpenRouter's address, else no key.
    Raises UserError for invalid settings, BackendError if the model returns too few tasks.
    """
    offered = [_plain(tool, MCPTool).to_dict() for tool in tools]
    readable = [_plain(resource, MCPResource).to_dict() for resource in resources]
    if not offered and not readable:
        raise UserError("there are neither tools nor resources to think up tasks for; pass at least one")
    if num_scenarios < 1:
        raise UserError(f"num_scenarios={num_scenarios} must be at least 1")
    given = overrides.address(generator_model) if isinstance(generator_model, str) else None
    model = _model(generator_model, generator_api_key, given or generator_base_url)
    shown = {"tools": _json(offered), "resources": _json(readable)}
    wanted = f"- {custom_instructions.strip()}\n" if custom_instructions else ""
    found: dict[str, GeneratedScenario] = {}
    num_fruitless = 0
    try:
        while len(found) < num_scenarios:
            count = min(MOST_PER_CALL, num_scenarios - len(found))
            known = "- They are none of these, which are there already:\n" + "".join(f"  - {task}\n" for task in found)
            prompt = _PROMPT.format(count=count, more=wanted + (known if found else ""), **shown)
            answer = await model.ask([{"role": "user", "content": prompt}], name="scenarios", schema=_SCHEMA)
            before = len(found)
            for scenario in _scenarios(answer.text):
                found.setdefault(scenario.task, scenario)
            num_fruitless = num_fruitless + 1 if len(found) == before else 0
            logger.debug("scenarios.asked count=%d new=%d", count, len(found) - before)
            if num_fruitless == MOST_FRUITLESS_CALLS:
                raise BackendError(
                    f"{model!r} gave {len(found)} scenarios of {num_scenarios}, and in {num_fruitless} calls no more "
                    f"of them; the last answer began with {answer.text[:200]!r}"
                )
    finally:
        if isinstance(generator_model, str):
            await model.aclose()
    collection = GeneratedScenarioCollection(list(found.values())[:num_scenarios])
    if show_preview:
        collection.print_difficulty_distribution()
        collection.preview()
    return collection


def _model(model: str | ChatModel, api_key: str | None, base_url: str | None) -> ChatModel:
    if not isinstance(model, str):
        return model
    if not base_url:
        return resolve_chat_model(model, {} if api_key is None else {"api_key": api_key})
    if api_key is None and base_url.rstrip("/") == DEFAULT_BASE_URL:
        variable = PROVIDERS["openrouter"].key_variable
        assert variable is not None, "OpenRouter wants a key"
        api_key = os.environ.get(variable)
        if not api_key:
            raise UserError(
                f"the scenarios of {model!r} come from {DEFAULT_BASE_URL}, which needs a key: set {variable}, pass "
                "generator_api_key=, or name another address with generator_base_url= (None: the model's provider)"
            )
    return HttpChatModel(Endpoint(base_url.rstrip("/"), model, api_key or NO_KEY))


def _plain(item: Any, kind: type[MCPTool] | type[MCPResource]) -> MCPTool | MCPResource:
    if isinstance(item, kind):
        return item
    if isinstance(item, ToolSpec):
        return MCPTool(item.name, item.description, item.parameters)
    if isinstance(item, Mapping):
        return kind.from_dict(item.get("function") or item)
    if callable(getattr(item, "model_dump", None)):  # an object of the `mcp` package, which need not be installed
        return kind.from_dict(item.model_dump(mode="json"))
    raise UserError(f"{item!r:.100} of type {type(item).__name__} is no {kind.__name__}, and no mapping of one")


def _json(values: Sequence[Json]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False)


def _scenarios(text: str) -> Iterator[GeneratedScenario]:
    """The valid scenarios in an answer; invalid ones are skipped."""
    start, end = text.find("{"), text.rfind("}")
    try:
        entries = json.loads(text[start : end + 1])["scenarios"]
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError):
        return
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("task"), str) and entry["task"].strip():
            try:
                yield GeneratedScenario(entry["task"].strip(), entry.get("difficulty"))  # type: ignore[arg-type]
            except UserError:
                continue
