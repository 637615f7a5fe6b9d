"""Loops that make their tokens as those of verl 0.9 do: first prompt, answers, messages, one behind the other."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.compat.config import Config
from ludus.compat.verl.base import AgentLoopBase, simple_timer
from ludus.compat.verl.config_view import ToolListWrap
from ludus.compat.verl.continuous import ContinuousTokenBuilder, MergeResult
from ludus.compat.verl.function_tools import normalize_function_tool_return
from ludus.compat.verl.output import AgentLoopOutput
from ludus.compat.verl.parser import ToolParser
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.compat.verl.tool_loop import ToolAgentLoop
from ludus.compat.verl.tracing import rollout_trace_op
from ludus.errors import UserError
from ludus.text.chat import ChatText
from ludus.text.template import ChatTemplate
from tests.compat.verl.conftest import Player, ReplayResult, configured
from tests.compat.verl.test_tool_loop import plan, says

__all__ = ["plan"]  # a fixture

Play = Callable[..., ReplayResult]
USER = {"role": "user", "content": "Add up."}
ROW = {"prompt": [USER]}


class Single(AgentLoopBase):
    """One turn, with all that verl 0.9 hands on."""

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        media = await self.process_multi_modal_info(list(kwargs["raw_prompt"]))
        self._assert_mm_supported(bool(media))
        seen: dict[str, Any] = {}
        prompt_ids = await self.ct_build_initial_tokens(
            kwargs["raw_prompt"], images=media.get("images"), videos=media.get("videos"), mm_inputs_out=seen
        )
        metrics: dict[str, Any] = {}
        with simple_timer("generate_sequences", metrics):
            answer = await self.server_manager.generate(
                request_id=uuid4().hex,
                prompt_ids=prompt_ids,
                sampling_params=sampling_params,
                image_data=media.get("images"),
                mm_processor_output=self.build_sglang_video_payload(media.get("videos"), seen),
                mm_processor_kwargs=self._get_mm_processor_kwargs(media.get("audios")),
                priority=priority,
            )
        merged, mask, logprobs = await self.ct_merge_assistant_token(
            prompt_ids, answer.token_ids, [], [], assistant_logprobs=answer.log_probs
        )
        most = self.rollout_config.response_length
        return AgentLoopOutput(
            prompt_ids=merged.token_ids[: len(merged.token_ids) - len(mask)],
            response_ids=merged.token_ids[-len(mask) :][:most],
            response_mask=mask[:most],
            response_logprobs=None if logprobs is None else logprobs[:most],
            num_turns=2,
            metrics=metrics,  # type: ignore[arg-type]  # pydantic reads it
            extra_fields=answer.extra_fields,
        )


def test_a_loop_of_one_turn(play: Play, plan: Callable[..., Config], caplog: pytest.LogCaptureFixture) -> None:
    """What it is trained on is what was sampled; what moves no token is named once a run."""
    with caplog.at_level(logging.INFO):
        played = play(Single, [{**ROW, "priority": 3}, ROW], ["It is 5.", "It is 6."], plan=plan())
    (turn,) = played.record.turns
    assert played.texts == ["It is 6."] and not played.scored.left_out
    assert played.scored.rewards == {turn.id: 1.0} and played.scored.metadata["global_steps"] == 0
    assert caplog.text.count("priority=3) is ignored: it moves no token") == 1 and "priority=0" not in caplog.text


def test_what_would_change_the_result_is_refused(play: Play) -> None:
    class Asks(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
            asked: dict[str, Any] = {
                "prompt_ids": await self.ct_build_initial_tokens([USER]),
                "sampling_params": sampling_params,
            }
            with pytest.raises(UserError, match=r"generate takes no 'lora_path', got 'x'; .*ignored are: priority"):
                await self.server_manager.generate("r", **asked, lora_path="x", bootstrap_room=None)
            with pytest.raises(UserError, match="mm_processor_output cannot be given: models here read text alone"):
                await self.server_manager.generate("r", **asked, mm_processor_output=[{"format": "x"}])
            with pytest.raises(UserError, match="videos cannot be given"):
                self.build_sglang_video_payload(["a film"], {})
            with pytest.raises(UserError, match="multi_modal_data cannot be given"):
                self._assert_mm_supported(True)
            raise UserError("done")

    with pytest.raises(UserError, match="done"):
        play(Asks, ROW, [])


def test_a_prompt_that_is_too_long_is_not_cut(play: Play) -> None:
    with pytest.raises(UserError, match=r"the prompt has \d+ tokens, tools included, and rollout.prompt_length=3"):
        play(Single, ROW, [], plan=configured(prompt_length=3))


class Tools(AgentLoopBase):
    """Several turns with tools, all of whose state is tokens, in the manner of verl 0.9's own."""

    def __init__(self, *args: Any, tools: ToolListWrap | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tools = {tool.name: tool for tool in (tools.tools if tools else ())}
        self.schemas = [
            tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in self.tools.values()
        ]
        turns = self.rollout_config.multi_turn
        self.max_assistant_turns, self.most = turns.max_assistant_turns, self.rollout_config.response_length
        assert self.rollout_config.full_determinism is False and turns.max_tool_response_length > 0
        self.parser = ToolParser.get_tool_parser(turns.format, self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        ids = await self.ct_build_initial_tokens(messages, tools=self.schemas)
        mask, logprobs, rounds, request_id = list[int](), list[float](), 0, uuid4().hex
        while True:
            answer = await self.server_manager.generate(
                request_id=request_id, prompt_ids=ids, sampling_params=sampling_params
            )
            merged, mask, logs = await self.ct_merge_assistant_token(
                ids, answer.token_ids, mask, logprobs, assistant_logprobs=answer.log_probs
            )
            ids, logprobs, rounds = merged.token_ids, logs or [], rounds + 1
            if len(mask) >= self.most or rounds == self.max_assistant_turns:
                break
            content, calls = await self.parser.extract_tool_calls(
                answer.token_ids, [tool.tool_schema for tool in self.tools.values()]
            )
            if not calls:
                break
            before = [*messages, _assistant(content, calls)]
            messages = list(before)
            for call in calls:
                returned = await self.tools[call.name].call(json.loads(call.arguments))
                response, _, _ = normalize_function_tool_return(returned)
                messages.append({"role": "tool", "content": response.text or ""})
            merged, mask, logs = await self.ct_merge_context_msg(
                before, messages, ids, mask, logprobs or None, tools=self.schemas
            )
            ids, logprobs = merged.token_ids, logs or []
        return AgentLoopOutput(
            prompt_ids=ids[: len(ids) - len(mask)],
            response_ids=ids[-len(mask) :][: self.most],
            response_mask=mask[: self.most],
            response_logprobs=logprobs[: self.most],
            num_turns=2 * rounds,
        )


def _assistant(content: str, calls: list[Any]) -> dict[str, Any]:
    functions = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]
    return {
        "role": "assistant",
        "content": content or "",
        "tool_calls": [{"type": "function", "function": each} for each in functions],
    }


def test_a_loop_with_tools_is_one_path_as_the_recorders_own(play: Play, plan: Callable[..., Config]) -> None:
    """The same tokens as those of the tool agent that comes with Ludus, turn by turn, and the same are trained."""
    answers = [says("add", a=2, b=3), says("add", a=5, b=1) + "\n" + says("add", a=1, b=1), "It is 8."]
    own = play(Tools, ROW, answers, plan=plan(max_parallel_calls=2))
    shipped = play(ToolAgentLoop, ROW, answers, plan=plan(max_parallel_calls=2))
    paths = [[played.record.path_ids(turn.node) for turn in played.record.turns] for played in (own, shipped)]
    assert len(paths[0]) == 3 and paths[0] == paths[1]
    assert [turn.prefix for turn in own.record.turns] == [None, *(turn.id for turn in own.record.turns[:2])]
    assert not own.scored.left_out and own.scored.reward == 1.0


def test_an_answer_that_was_cut_is_closed(play: Player, plan: Callable[..., Config]) -> None:
    """By what the template closes answers with, and not by a token of the model's."""
    play.sampling = replace(play.sampling, max_new_tokens=4)

    class Twice(AgentLoopBase):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
            ids = await self.ct_build_initial_tokens([USER])
            first = await self.server_manager.generate("r", prompt_ids=ids, sampling_params=sampling_params)
            said = [USER, {"role": "assistant", "content": "cut"}]
            merged, mask, _ = await self.ct_merge_non_assistant_msg(
                said, [*said, {"role": "user", "content": "Go on."}], [*ids, *first], [1] * len(first)
            )
            assert mask == [1] * len(first) + [0] * merged.appended_token_count
            answer = await self.server_manager.generate(
                "r", prompt_ids=merged.token_ids, sampling_params=sampling_params
            )
            return AgentLoopOutput(
                prompt_ids=ids,
                response_ids=[*merged.token_ids[len(ids) :], *answer],
                response_mask=[*mask, *[1] * len(answer)],
            )

    played = play(Twice, ROW, ["a very long answer of many tokens", "more of it"], plan=plan())
    shown = play.text.tokenizer.decode(played.engine.calls[1].prompt_ids)
    assert shown.endswith("<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
    assert shown.count("<|im_end|>") == 3 and not played.scored.left_out


def test_history_that_changed_cannot_be_gone_on_with(text: ChatText) -> None:
    builder = ContinuousTokenBuilder(LoopTokenizer(text))
    said = [USER, {"role": "assistant", "content": "5"}]
    with pytest.raises(UserError, match="messages of before are changed or gone"):
        builder.merge_context_tokens(said, [said[0], {"role": "user", "content": "x"}], [1])
    with pytest.raises(UserError, match="the last message that is appended is the model's"):
        builder.merge_context_tokens(said[:1], said, [1])
    with pytest.raises(UserError, match=r"a message of 'user' is appended; allowed: \['tool'\]"):
        only_tools = ContinuousTokenBuilder(LoopTokenizer(text), allowed_append_roles={"tool"})
        only_tools.merge_context_tokens(said, [*said, USER], [1])
    assert builder.tokenize_context_incremental_messages(said, said) == []
    ended = builder.tokenize_context_incremental_messages(said, [*said, USER])
    assert text.tokenizer.decode(ended) == "\n<|im_start|>user\nAdd up.<|im_end|>\n<|im_start|>assistant\n"


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=6))
def test_mask_and_logprobs_stay_beside_the_tokens(steps: list[tuple[bool, int]]) -> None:
    """After any row of answers and messages: as many as tokens, and logprobs where the mask is 1."""
    builder = ContinuousTokenBuilder(LoopTokenizer(None))  # type: ignore[arg-type]  # nothing is rendered
    ids, mask, logprobs, num_sampled = list[int](), list[int](), list[float](), 0
    for is_answer, count in steps:
        merged = MergeResult([*ids, *[7] * count], count, "assistant" if is_answer else "context")
        own = [-0.5] * count if is_answer else None
        mask, logs = builder.align_response_metadata(merged, mask, logprobs, assistant_logprobs=own)
        ids, logprobs, num_sampled = merged.token_ids, logs or [], num_sampled + count * is_answer
    assert len(mask) == len(ids) and sum(mask) == num_sampled
    assert logprobs == [-0.5 * each for each in mask]


# As gpt-oss's and Mistral's: an answer of a tool that nobody called is refused.
STRICT = """\
{%- for m in messages -%}
{%- set before = messages[loop.index0 - 1] -%}
{%- if m.role == 'tool' and before.role != 'tool' and not before.tool_calls -%}
{{ raise_exception('nobody called') }}
{%- endif -%}
<|im_start|>{{ m.role }}
{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor -%}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def test_templates_that_ask_for_the_call_are_shown_it(text: ChatText) -> None:
    strict = replace(text, template=ChatTemplate(STRICT, text.tokenizer.special_tokens))
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    said: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    builder = ContinuousTokenBuilder(LoopTokenizer(strict))
    updated = [*said, {"role": "tool", "content": "2"}]
    behind = "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"
    (end,) = text.tokenizer.stop_ids & set(text.tokenizer.encode("<|im_end|>"))
    for last, closing in ((end, ""), (5, "<|im_end|>")):
        merged = builder.merge_non_assistant_tokens(said, updated, [last])
        assert text.tokenizer.decode(merged.token_ids[1:]) == closing + behind
