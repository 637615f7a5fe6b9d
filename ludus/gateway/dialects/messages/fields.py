"""Every field of `POST /v1/messages` and of the objects in it: honoured, ignored or refused.

Knows: names and classes.  Knows not: what a field means.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.gateway.dialects.fields import FieldTable, Refused
from ludus.gateway.dialects.sampling import SAMPLING_FIELDS

LIMITS = ("max_tokens",)
REQUEST = FieldTable.of(
    "messages system model tools tool_choice stop_sequences thinking thread output_config output_format"
    " stream chat_template_kwargs context_management",
    "billing_policy cache_control diagnostics fallback_credit_token fallbacks inference_geo metadata"
    " service_tier speed user_profile_id workspace_id",
    {
        "compaction": (None, "Send the history that the model is to see."),
        "container": (None, "There are no containers; offer a tool of your own."),
        "mcp_servers": ([], "Connect to the servers yourself and offer their tools in 'tools'."),
    },
    also=(*SAMPLING_FIELDS, *LIMITS),
)
MESSAGE = FieldTable.of("role content")
OUTPUT_CONFIG = FieldTable.of("effort format", refused={"task_budget": (None, "Limit 'max_tokens' instead.")})
THINKING: Mapping[str, FieldTable] = {
    "enabled": FieldTable.of("type budget_tokens", "display block_binding"),
    "disabled": FieldTable.of("type"),
    "adaptive": FieldTable.of("type", "display"),
    "between_tools": FieldTable.of("type"),
}
"""By type."""
THREADS: Mapping[str, FieldTable] = {
    "create": FieldTable.of("type"),
    "continue": FieldTable.of("type previous_message_id"),
}
"""By type."""
KEPT_BY_THREADS = ("system", "tools")
TOOL_CHOICES: Mapping[str, FieldTable] = {
    "auto": FieldTable.of("type disable_parallel_tool_use"),
    "any": FieldTable.of("type disable_parallel_tool_use"),
    "tool": FieldTable.of("type name disable_parallel_tool_use"),
    "none": FieldTable.of("type"),
}
"""By type."""
TOOL = FieldTable.of(
    "type name description input_schema strict",
    "cache_control eager_input_streaming",
    {
        "allowed_callers": (["direct"], "The model itself is the only caller."),
        "defer_loading": (False, "Offer the tool when the model is to see it."),
        "input_examples": ([], "Write the examples into 'description'."),
    },
)

_TOOLSET: Refused = {"toolset_name": (None, "Offer the tool by itself.")}
BLOCKS: Mapping[str, FieldTable] = {
    "text": FieldTable.of("type text", "cache_control citations parsed_output"),
    "thinking": FieldTable.of("type thinking signature", "cache_control"),
    "redacted_thinking": FieldTable.of("type", "cache_control data"),
    "tool_use": FieldTable.of("type id name input", "cache_control caller", _TOOLSET),
    "tool_result": FieldTable.of("type tool_use_id content", "cache_control is_error", _TOOLSET),
}
"""Of a message's content, by type."""
TEXTS: Mapping[str, FieldTable] = {"text": BLOCKS["text"]}
BLOCKS_OF: Mapping[str, Mapping[str, FieldTable]] = {
    "user": {kind: BLOCKS[kind] for kind in ("text", "tool_result")},
    "assistant": {kind: BLOCKS[kind] for kind in ("text", "thinking", "redacted_thinking", "tool_use")},
    "system": TEXTS,
}
"""By role, then by type."""
EFFORTS = ("low", "medium", "high", "xhigh", "max")
