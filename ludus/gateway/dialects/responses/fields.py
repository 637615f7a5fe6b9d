"""Every field of `POST /v1/responses` and of the objects in it: honoured, ignored or refused.

Knows: names and classes.  Knows not: what a field means.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.gateway.dialects.fields import FieldTable, names
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS

LIMITS = ("max_output_tokens",)
REQUEST = FieldTable.of(
    "input instructions previous_response_id model tools tool_choice parallel_tool_calls text reasoning"
    " include stop top_logprobs stream stream_options chat_template_kwargs metadata",
    "access_programs client_metadata image max_tool_calls prompt_cache_key prompt_cache_options"
    " prompt_cache_retention safety_identifier service_tier store user",
    {
        "background": (False, "Wait for the answer, or stream it."),
        "context_management": ([], "Send the history that the model is to see."),
        "conversation": (None, "Use 'previous_response_id', or send the history in 'input'."),
        "moderation": (None, "Leave it out; nothing is moderated."),
        "prompt": (None, "Send the prompt's text in 'instructions' and 'input'."),
        "truncation": ("disabled", "Shorten the history before you send it."),
    },
    also=(*SAMPLING_FIELDS, *LIMITS),
)
REASONING = FieldTable.of(
    "effort summary generate_summary",
    refused={
        "context": ("auto", "The chat template decides which thinking it shows."),
        "mode": ("standard", "There is one mode; ask for 'effort'."),
    },
)
# No template reads a verbosity, and OpenAI's agents SDK sends one by itself where no model is named.
TEXT = FieldTable.of("format", "verbosity")
TOOL = FieldTable.of(
    "type name description parameters strict",
    "output_schema",
    {
        "allowed_callers": (["direct"], "The model itself is the only caller."),
        "async": (False, "Calls are answered in the next request."),
        "defer_loading": (False, "Offer the tool when the model is to see it."),
    },
)
INCLUDED = "message.output_text.logprobs"
"""The one entry of `include` that has an effect."""
INCLUDES = names(
    "code_interpreter_call.outputs computer_call_output.output.image_url file_search_call.results"
    " message.input_image.image_url reasoning.encrypted_content web_search_call.action.sources"
    " web_search_call.results"
)
"""Entries of `include` that are ignored: they ask for details of items that no answer here contains."""

ITEMS: Mapping[str, FieldTable] = {
    "message": FieldTable.of("type role content id", "status phase"),
    "function_call": FieldTable.of(
        "type call_id name arguments id",
        "status caller parsed_arguments",
        {"namespace": ("", "Offer the tool under one name."), "async": (False, "Calls are answered in order.")},
    ),
    "function_call_output": FieldTable.of(
        "type call_id output name",
        "id status caller",
        {"namespace": ("", "Offer the tool under one name.")},
    ),
    "reasoning": FieldTable.of("type summary content id", "status encrypted_content"),
}
"""Of `input`, by type."""
TEXTS: Mapping[str, FieldTable] = {
    "input_text": FieldTable.of("type text", "prompt_cache_breakpoint"),
    "output_text": FieldTable.of("type text", "annotations logprobs parsed prompt_cache_breakpoint"),
}
"""Of an item's content, by type."""
THOUGHTS: Mapping[str, FieldTable] = {
    "reasoning_text": FieldTable.of("type text"),
    "summary_text": FieldTable.of("type text"),
}
"""The same of thinking."""
