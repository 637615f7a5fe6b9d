"""Converts a row to the prompt of a queue agent.

Knows: columns of rows, the chat template, token ids.  Knows not: queues, agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.compat.realhf.sample import SequenceSample, import_torch
from ludus.errors import UserError
from ludus.text.chat import ChatText
from ludus.types import Message

RL_TASKS = ("math", "code", "rlhf", "stem")
"""Values of the column `task`; their indices are used under the key `task_ids`."""

ROW = "row"
"""Key of a prompt's metadata with the whole row."""
_ID_COLUMNS = ("query_id", "qid", "id")


def query_id(row: Mapping[str, Any], task_id: str) -> str:
    """The row's own id, else its task id."""
    return next((str(row[name]) for name in _ID_COLUMNS if row.get(name) is not None), task_id)


def prompt_sample(row: Mapping[str, Any], text: ChatText, qid: str, *, takes_prompt: bool = True) -> SequenceSample:
    """The row as a sample: token ids under `packed_prompts`, the row itself in the metadata."""
    torch = import_torch()
    ids = prompt_ids(row, text) if takes_prompt else ()
    data = {"packed_prompts": torch.tensor(ids, dtype=torch.long)}
    if row.get("task") in RL_TASKS:
        data["task_ids"] = torch.tensor([RL_TASKS.index(row["task"])], dtype=torch.long)
    return SequenceSample.from_default(seqlens=[len(ids)], ids=[qid], data=data, metadata={ROW: [row]})


def prompt_ids(row: Mapping[str, Any], text: ChatText) -> tuple[int, ...]:
    """Token ids of the row's prompt.

    `prompt_ids` are used unchanged; a text `prompt` is tokenized without a template; `messages`, a `prompt` of messages
    and a `question` are rendered with the model's chat template.
    """
    if row.get("prompt_ids") is not None:
        return tuple(map(int, row["prompt_ids"]))
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return text.tokenizer.encode(prompt)
    messages = row.get("messages") if prompt is None else prompt
    if messages is None and isinstance(row.get("question"), str):
        messages = [{"role": "user", "content": row["question"]}]
    if messages is None:
        raise UserError(
            "the row has no prompt: a queue agent needs one of the columns prompt (text with its template, or messages)"
            f", messages, question (text) or prompt_ids; it has {', '.join(map(str, row))}"
        )
    return text.tokenizer.encode(text.template.render([_message(item) for item in messages]))


def _message(item: Any) -> Message:
    if not isinstance(item, Mapping) or "role" not in item:
        raise UserError(f"a message of the prompt must be a mapping with role and content, got {item!r:.100}")
    return Message(item["role"], item.get("content"))
