"""Every field of `POST /v1/chat/completions` and of the objects in it: honoured, ignored or refused.

Knows: names and classes.  Knows not: what a field means.
Fields that are not OpenAI's but that other servers of this protocol have are honoured where the engine can: top_k,
min_p, repetition_penalty, stop_token_ids, chat_template_kwargs, return_token_ids, return_tokens_as_token_ids, and
reasoning_content on assistant messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.gateway.dialects.fields import FieldTable, Refused
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS

LIMITS = ("max_tokens", "max_completion_tokens")
REQUEST = FieldTable.of(
    "messages model tools tool_choice parallel_tool_calls response_format reasoning_effort n stop"
    " logprobs top_logprobs stream stream_options chat_template_kwargs return_token_ids return_tokens_as_token_ids",
    "metadata prediction prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier"
    " service_tier store user verbosity",
    {
        "audio": (None, "The model writes text only."),
        "function_call": ("none", "Use 'tool_choice'."),
        "functions": ([], "Use 'tools'."),
        # vLLM's, which clients for its servers send as null
        "guided_choice": (None, "Use 'response_format' with a JSON schema, or 'tools' with 'tool_choice'."),
        "modalities": (["text"], "The model writes text only."),
        "moderation": (None, "Leave it out; nothing is moderated."),
        "web_search_options": (None, "Offer a search tool in 'tools'."),
    },
    also=(*SAMPLING_FIELDS, *LIMITS),
)
TOOL = FieldTable.of("type function")
FUNCTION = FieldTable.of("name description parameters strict")
PARTS: Mapping[str, FieldTable] = {"text": FieldTable.of("type text", "prompt_cache_breakpoint")}
TOOL_CALL = FieldTable.of("id type function index")
# The SDK's helpers add what they parsed to what they hand out.
CALLED = FieldTable.of("name arguments", "parsed_arguments")

# The SDK hands out messages with these, so agents send them back; they must be empty.
_EMPTY: Refused = {
    name: (harmless, "Leave it out; the model's own replies never have it.")
    for name, harmless in (("refusal", ""), ("annotations", []), ("audio", {}), ("function_call", {}))
}
MESSAGES: Mapping[str, FieldTable] = {
    "system": FieldTable.of("role content name"),
    "developer": FieldTable.of("role content name"),
    "user": FieldTable.of("role content name"),
    "assistant": FieldTable.of(
        "role content name tool_calls reasoning_content reasoning",
        # What the SDK parsed, and what LiteLLM makes of the fields of an answer that it does not know.
        "parsed provider_specific_fields",
        _EMPTY,
    ),
    "tool": FieldTable.of("role content name tool_call_id"),
}
"""By role."""
