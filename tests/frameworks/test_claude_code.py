"""A conversation as Claude Code leads it, from the first probe to the compacted history: forks by reason, no loss."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ludus.types import Call
from tests.frameworks.checker import check_record
from tests.frameworks.claude_code import ClaudeCode

SHELL = {"grep -rn 'def parser_for'": "parse.py:41", "ls tests": "test_parse.py", "make test": "12 passed"}
WHERE = "Where is the parser made, and where is it tested?"
MADE, TESTED = "Find where the parser is made.", "Find where the parser is tested."
PARTIAL = "The parser is a long story,"


def called(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def task(prompt: str) -> str:
    return f'{{"name": "Task", "arguments": {{"description":"Look", "prompt": "{prompt}","subagent_type": "Explore"}}}}'


def bash(command: str) -> str:
    return f'{{"name": "Bash", "arguments": {{"command":"{command}"}}}}'


# By a name: what was said last, and the answer to it. Sub-agents ask at the same time, so no order tells them apart.
ANSWERS = {
    "probe": ("quota", "Yes, there is some left."),
    "title": ("in under 50 characters", "Where parsers are made and tested, told in more words than fit"),
    "plan": (WHERE, "<think>\nTwo places.\n</think>\n\nI look in both.\n" + called(task(MADE), task(TESTED))),
    "one": (MADE, called(bash("grep -rn 'def parser_for'"))),
    "one found": ("parse.py:41", "It is made in parse.py."),
    "other": (TESTED, called(bash("ls tests"))),
    "found": ("It is made in parse.py.", "<think>\nBoth are found.\n</think>\n\nMade in parse.py, tested beside it."),
    "other found": ("test_parse.py", "It is tested in test_parse.py."),
    "run": ("Run the tests.", "<think>\nOne command.\n</think>\n\n" + called(bash("make test"))),
    "passed": ("12 passed", "All 12 pass."),
    "long": ("Tell me everything.", PARTIAL + " and it begins with the template that the model came with."),
    "brief": ("Be brief.", "It reads calls."),
    "summary": ("create a detailed summary", "The parser was found, and the tests ran."),
    "resumed": ("Anything left?", "<think>\nNo.\n</think>\n\nNothing is left."),
}
# What each turn follows, and why its tokens do not extend that one's. A conversation that begins anew is `truncated`
# where it is shorter than the one before it, else an `edit`; Qwen 3 drops old thinking at every new question.
LINEAGE = {
    "probe": (None, None),
    "title": ("probe", "edit"),
    "plan": ("title", "truncated"),
    "one": ("plan", "truncated"),
    "one found": ("one", None),
    "other": ("plan", "truncated"),
    "other found": ("other", None),
    "found": ("plan", None),
    "run": ("found", "reasoning_stripped"),
    "passed": ("run", None),
    "long": ("passed", "reasoning_stripped"),
    "brief": ("long", None),
    "summary": ("brief", "edit"),
    "resumed": ("summary", "truncated"),
}


def test_conversation_of_claude_code(serve_session: Any, thinking_text: Any) -> None:
    """Probe, title, count, thinking, parallel sub-agents, interruption and compaction: all in the record, by reason."""
    names: dict[str, str] = {}

    def answer(call: Call) -> str:
        prompt = thinking_text.tokenizer.decode(call.prompt_ids)
        asked = prompt if "in under 50" in prompt else prompt[prompt.rindex("<|im_start|>user") :]
        name, reply = next((name, reply) for name, (said, reply) in ANSWERS.items() if said in asked)
        names[call.id] = name
        return reply

    served = serve_session(thinking_text, answer, num_free=len(thinking_text.tokenizer.encode(PARTIAL)))
    served.engine.open_gate()

    async def play() -> int:
        agent = ClaudeCode(served.url, SHELL)
        async with agent.client:
            assert await agent.quota() == 1
            assert (await agent.title(WHERE)).startswith("Where")
            assert await agent.ask(WHERE) == "Made in parse.py, tested beside it."
            assert await agent.ask("Run the tests.") == "All 12 pass."
            served.engine.close_gate()
            assert await agent.ask_and_interrupt("Tell me everything.", num_chars=len(PARTIAL)) == PARTIAL
            await asyncio.to_thread(served.engine.was_aborted.wait)
            served.engine.open_gate()
            assert await agent.ask("Be brief.") == "It reads calls."
            assert await agent.compact() == "The parser was found, and the tests ran."
            num_counted = await agent.count("Anything left?")
            assert await agent.ask("Anything left?") == "Nothing is left."
            return num_counted

    num_counted = asyncio.run(play())
    record = check_record(served)
    assert len(record.turns) == len(ANSWERS)
    assert {names[turn.id]: (names.get(str(turn.follows)), turn.fork) for turn in record.turns} == LINEAGE
    assert served.session.stats().forks == Counter(fork for _, fork in LINEAGE.values() if fork)
    assert {names[turn.id] for turn in record.turns if turn.sampled.stop_reason == "abort"} == {"long"}
    assert {names[turn.id] for turn in record.turns if turn.sampled.stop_reason == "length"} == {"probe", "title"}
    assert num_counted == next(len(call.prompt_ids) for call in served.engine.calls if names[call.id] == "resumed")
