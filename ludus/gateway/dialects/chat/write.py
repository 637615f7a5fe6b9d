"""A chat completion's answer, as one body or as server-sent events.

Knows: the shapes of the protocol.  Knows not: how a request is read.
"""

from __future__ import annotations

from dataclasses import replace

from ludus.episodes.names import DEFAULT_MODEL
from ludus.episodes.reply import replay
from ludus.gateway.dialects.base import Answer, ErrorReply, JsonObject, ParsedRequest
from ludus.gateway.dialects.openai import ChunkWriter, tokens_json, usage_json
from ludus.text.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallBroken, ToolCallDelta
from ludus.types import Message, Turn


def whole(answer: Answer, parsed: ParsedRequest, model_name: str) -> JsonObject:
    """The body of an answer that is not streamed. Each choice has the id of its turn, so that the choice can be
    rewarded and trained on its own."""
    of_model = _of_model(model_name)
    return {
        "id": answer.turns[0].id,
        "object": "chat.completion",
        "created": int(answer.turns[0].started_at),
        "model": model_name,
        **_prompt_ids(answer, parsed),
        "choices": [
            {
                "index": i,
                "message": _message_json(turn.reply),
                "logprobs": _logprobs(turn, answer, parsed),
                "finish_reason": turn.finish_reason,
                "turn_id": turn.id,
                **_token_ids(turn, parsed),
                **of_model,
            }
            for i, turn in enumerate(answer.turns)
        ],
        "usage": usage_json(answer),
    }


class ChatStream:
    """The chunks of one streamed answer: a role for each choice, deltas, a finish reason for each, usage if asked."""

    def __init__(self, parsed: ParsedRequest, model_name: str, created_at: float) -> None:
        self._parsed = parsed
        self._of_model = _of_model(model_name)
        self._chunks = ChunkWriter(parsed, "chat.completion.chunk", model_name, created_at)
        self._begun: set[int] = set()
        self._broken: dict[int, list[int]] = {}
        """By choice: the indices of tool calls that turned out to be malformed."""

    def start(self, turn_ids: tuple[str, ...], num_prompt_tokens: int) -> bytes:
        self._chunks.start(turn_ids[0])
        # In the first chunk of a choice too: SDKs that put an answer together keep what they do not know from there.
        opening, of_model = {"role": "assistant"}, self._of_model
        parts = [self._chunk(i, opening, turn_id=turn_id, **of_model) for i, turn_id in enumerate(turn_ids)]
        return b"".join(parts)

    def delta(self, choice_idx: int, delta: Delta) -> bytes:
        self._begun.add(choice_idx)
        if isinstance(delta, ToolCallBroken):
            self._broken.setdefault(choice_idx, []).append(delta.index)
            return b""
        return self._chunk(choice_idx, _delta_json(delta))

    def finish(self, answer: Answer) -> bytes:
        return b"".join([self._end(i, turn, answer) for i, turn in enumerate(answer.turns)]) + self._chunks.end(answer)

    def error(self, error: ErrorReply) -> bytes:
        return self._chunks.error(error)

    def _end(self, choice_idx: int, turn: Turn, answer: Answer) -> bytes:
        # A retry may be answered with the first attempt's turn, for which there are no deltas to send again.
        deltas = () if choice_idx in self._begun else replay(turn.reply)
        begun = b"".join(self._chunk(choice_idx, _delta_json(delta)) for delta in deltas)
        logprobs = _logprobs(turn, answer, self._parsed)
        broken = self._broken.get(choice_idx)
        undecoded = {"ludus": {"undecoded_tool_calls": broken}} if broken else {}
        own = {"turn_id": turn.id, **_token_ids(turn, self._parsed), **self._of_model, **undecoded}
        last = {"logprobs": logprobs, "finish_reason": turn.finish_reason, **own}
        return begun + self._chunks.chunk(choice_idx, {"delta": {}}, last, _prompt_ids(answer, self._parsed))

    def _chunk(self, choice_idx: int, delta: JsonObject, **last: object) -> bytes:
        return self._chunks.chunk(choice_idx, {"delta": delta}, last)


def _of_model(model_name: str) -> dict[str, str]:
    """The model that sampled a choice, as a field beside its turn id: a key may reach several models."""
    return {} if model_name == DEFAULT_MODEL else {"model": model_name}


def _message_json(reply: Message) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def _delta_json(delta: Delta) -> JsonObject:
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    assert isinstance(delta, ToolCallDelta), f"a delta that is not written: {delta}"
    call: JsonObject = {"index": delta.index}
    function: JsonObject = {"arguments": delta.arguments}
    if delta.id is not None:
        call |= {"id": delta.id, "type": "function"}
    if delta.name is not None:
        function = {"name": delta.name, **function}
    return {"tool_calls": [{**call, "function": function}]}


def _prompt_ids(answer: Answer, parsed: ParsedRequest) -> JsonObject:
    return {"prompt_token_ids": list(answer.given_ids(answer.turns[0]))} if parsed.token_ids else {}


def _token_ids(turn: Turn, parsed: ParsedRequest) -> JsonObject:
    return {"token_ids": list(turn.sampled.token_ids)} if parsed.token_ids else {}


def _logprobs(turn: Turn, answer: Answer, parsed: ParsedRequest) -> JsonObject | None:
    """None: they are not asked for."""
    if not parsed.logprobs:
        return None
    if parsed.tokens_as_ids:
        answer = replace(answer, token_text="token_id:{}".format)
    content = [{**token, "top_logprobs": likeliest} for token, likeliest in tokens_json(turn, answer)]
    return {"content": content, "refusal": None}
