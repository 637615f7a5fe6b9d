"""OpenAI Completions: JSON to nouns and back, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion
from openai.types.completion_create_params import CompletionCreateParamsBase

from ludus.errors import AgentError
from ludus.gateway.dialects.base import ParsedRequest, ReadMessages
from ludus.gateway.dialects.completions.dialect import COMPLETIONS as DIALECT
from ludus.gateway.dialects.completions.fields import REQUEST
from ludus.text.parsers.base import ContentDelta
from ludus.types import ChatRequest, Sampling
from tests.gateway.dialects.replies import answer_of, events


def parse(*, limit: int | None = None, **fields: Any) -> ParsedRequest:
    defaults = Sampling(max_new_tokens=limit)
    return DIALECT.parse({"model": "default", "prompt": "Once", **fields}, defaults, ReadMessages())


def refused(**fields: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ([7, 8], [(7, 8)]),
        (["a", "b"], ["a", "b"]),
        ([[7], [8, 9]], [(7,), (8, 9)]),
        (["a", [7]], ["a", (7,)]),
    ],
)
def test_each_prompt_is_a_request(prompt: Any, prompts: list[Any]) -> None:
    """Text or token ids, one or several, become requests without messages that are answered together."""
    requests = parse(prompt=prompt, n=2).requests
    assert requests == tuple(
        ChatRequest((), sampling=Sampling(max_new_tokens=16), n=2, prompt=each) for each in prompts
    )


def test_fields_are_honoured() -> None:
    """Sampling, the limit and its default, and the number of likeliest tokens."""
    sampling = parse(temperature=0.5, stop="END", logprobs=2, max_tokens=3, logit_bias={"7": 1}).request.sampling
    assert sampling == Sampling(
        temperature=0.5, stop=("END",), top_logprobs=2, max_new_tokens=3, logit_bias=((7, 1.0),)
    )
    assert parse(limit=5).request.sampling.max_new_tokens == 5
    assert parse(user="me").ignored == ("user",)


def test_every_field_of_the_sdk_has_a_place() -> None:
    """No field of OpenAI's own request type is unknown here."""
    assert {*CompletionCreateParamsBase.__annotations__, "stream"} - REQUEST.known == set()


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": None}, "missing_required_parameter", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": 5}, "invalid_type", "prompt"),
        ({"prompt": [[7], -1]}, "invalid_type", "prompt[1]"),
        ({"prompt": ["a"] * 129}, "invalid_value", "prompt"),
        ({"prompt": ["a"] * 64, "n": 3}, "invalid_value", "n"),
        ({"echo": True, "logprobs": 1}, "unsupported_parameter", "echo"),
        ({"echo": True, "prompt": [7]}, "unsupported_parameter", "echo"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"messages": []}, "unknown_parameter", "messages"),
    ],
)
def test_bad_requests_are_refused_with_code_and_param(fields: dict[str, Any], code: str, param: str) -> None:
    """Each kind of bad request has a typed code and names what is at fault."""
    error = refused(**fields)
    assert (error.code, error.param) == (code, param)


def test_completion_has_openais_shape() -> None:
    """The body validates as the SDK's own Completion; logprobs have the older shape."""
    finished = answer_of((ContentDelta("ab"),), (ContentDelta("c"),))
    body = DIALECT.response(finished, parse(n=2, echo=True), "tiny")
    completion = Completion.model_validate(body, strict=True)
    assert (completion.id, [choice.text for choice in completion.choices]) == ("cmpl-1", ["Onceab", "Oncec"])
    logprobs = DIALECT.response(finished, parse(n=2, logprobs=0), "tiny")["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "\ufffd"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": None,
        "text_offset": [0, 1],
    }


def test_chunks_have_openais_shape() -> None:
    """Every choice begins with its own prompt where it is echoed; the last chunk of each says why it ended."""
    writer = DIALECT.writer(parse(prompt=["a", "b"], echo=True, stream=True), "tiny", 0.0)
    finished = answer_of((ContentDelta("c"),), (ContentDelta("d"),))
    raw = writer.start(("chatcmpl-1", "chatcmpl-2"), 5) + writer.delta(1, ContentDelta("d")) + writer.finish(finished)
    *written, done = events(raw)
    texts = [
        "".join(each["choices"][0]["text"] for each in written if each["choices"][0]["index"] == i) for i in (0, 1)
    ]
    assert (texts, done) == (["ac", "bd"], "[DONE]")
    assert [each["choices"][0]["finish_reason"] for each in written[-2:]] == ["stop", "stop"]
