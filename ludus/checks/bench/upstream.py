"""The model server behind peers' gateways in `ludus bench gateway`: `python upstream.py REPLY` prints its port.

Knows: HTTP/1.1 over raw sockets, one answer.  Knows not: Ludus, tokenizers; it needs only Python.
A server of Chat Completions that answers every request immediately with the same text, streamed word by word on
request; it returns token ids and logprobs on request, in the format of vLLM's server.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')
_HEAD = {"id": "chatcmpl-0", "created": 0, "model": "default"}
_USAGE = {"prompt_tokens": 40, "completion_tokens": 16, "total_tokens": 56}


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, whole: bytes, streamed: bytes) -> None:
        self._whole = whole
        self._streamed = streamed
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked += data
        head, mark, body = self._asked.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if mark and len(body) >= (int(length[1]) if length else 0):
            self._asked = b""
            self._transport.write(self._streamed if _STREAM.search(body) else self._whole)


def whole(reply: str) -> bytes:
    """The whole answer."""
    words = _words(reply)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply},
        "finish_reason": "stop",
        "logprobs": {"content": [_logprob(word) for word in words]},
        "token_ids": list(range(len(words))),
    }
    extra = {"usage": _USAGE, "prompt_token_ids": list(range(_USAGE["prompt_tokens"]))}
    body = json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], **extra}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def streamed(reply: str) -> bytes:
    """The answer as a stream, one chunk for each word."""
    events = [_event({"role": "assistant", "content": ""})]
    for idx, word in enumerate(_words(reply)):
        events.append(_event({"content": word}, logprobs={"content": [_logprob(word)]}, token_ids=[idx]))
    events += [_event({}, finish_reason="stop"), b"data: [DONE]\n\n"]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + chunks + b"0\r\n\r\n"


def _words(reply: str) -> list[str]:
    return re.findall(r"\s*\S+", reply)


def _logprob(word: str) -> dict[str, Any]:
    return {"token": word, "logprob": -1.0, "bytes": list(word.encode()), "top_logprobs": []}


def _event(delta: dict[str, str], **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **fields}
    body = json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [choice]})
    return f"data: {body}\n\n".encode()


async def serve(reply: str) -> None:
    """Serve on a free port until the process is ended."""
    answers = whole(reply), streamed(reply)
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(*answers), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
