"""The engine without threads, against transformers alone."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ludus.engines.local.core import EngineCore
from ludus.errors import UserError
from ludus.text.constraint import Constraints
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, Sampling

SequenceChunk = Callable[[EngineCore, list[Call]], dict[str, Sampled]]
MakeCore = Callable[..., EngineCore]

# No token ends an answer early: the tests compare whole answers. The tiny models rarely sample id 2 on their own.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt_oss")


def prompts(lengths: list[int], *, seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, 300) for _ in range(length)) for length in lengths]


def check_logprobs(naive, answers: dict[str, Sampled], calls: list[Call]) -> None:
    for call in calls:
        answer = answers[call.id]
        expected = naive.logprobs(call.prompt_ids, answer.token_ids, call.sampling.temperature)
        assert torch.allclose(torch.tensor(answer.logprobs), expected, atol=1e-4), call.id


@pytest.mark.parametrize("kernels", ["eager", "auto"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_tokens_equal_those_of_transformers(
    name: str, kernels: str, make_core: MakeCore, naive, run_calls: SequenceChunk
) -> None:
    """Greedy answers are token for token what one full forward pass a token gives, in every family."""
    calls = [
        Call(f"call-{length}", "s", prompt, Sampling(temperature=0.0, max_new_tokens=12))
        for length, prompt in zip([1, 7, 16, 45], prompts([1, 7, 16, 45]), strict=True)
    ]
    answers = run_calls(make_core(name, kernels=kernels), calls)
    for call in calls:
        answer = answers[call.id]
        assert list(answer.token_ids) == naive(name).greedy(call.prompt_ids, len(answer.token_ids))


def test_what_a_call_waits_is_no_part_of_its_prefill(make_core: MakeCore) -> None:
    """With room for one call the second begins when the first has ended, whenever it was asked."""
    core = make_core(max_running=1)
    for name in ("first", "second"):
        core.add(Call(name, "s", (5, 6, 7), Sampling(max_new_tokens=8, ignore_eos=True)), 0)
    ended_at, answers = time.monotonic(), dict[str, Sampled]()
    while not core.is_idle:
        for progress in core.step():
            if progress.answer is not None:
                answers[progress.call_id] = progress.answer
                ended_at = ended_at if "second" in answers else time.monotonic()
    first, second = answers["first"].prefill_s, answers["second"].prefill_s
    assert first is not None and second is not None
    assert first > 0.0 and 0.0 < second < time.monotonic() - ended_at
    core.add(Call("third", "s", (5, 6, 7), Sampling()), 0)
    ended = core.abort("third")
    assert ended is not None and ended.answer is not None and ended.answer.prefill_s is None


def test_eos_can_be_ignored(make_core: MakeCore, run_calls: SequenceChunk) -> None:
    """An answer that its end-of-turn token would end goes on to its full length with the same tokens."""

    def answers(ignore_eos: bool) -> dict[str, Sampled]:
        samplings = [Sampling(seed=seed, max_new_tokens=60, ignore_eos=ignore_eos) for seed in range(32)]
        return run_calls(make_core(), [Call(f"{each.seed}", "s", (5, 6, 7), each) for each in samplings])

    stopping, going_on = answers(ignore_eos=False), answers(ignore_eos=True)
    assert any(answer.stop_reason == "stop" for answer in stopping.values())
    for name, answer in stopping.items():
        assert going_on[name].token_ids[: len(answer.token_ids)] == answer.token_ids
        assert (len(going_on[name].token_ids), going_on[name].stop_reason) == (60, "length")


@pytest.mark.parametrize("kernels", ["eager", "auto"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_logprobs_equal_a_full_forward_under_load(
    name: str, kernels: str, make_core: MakeCore, naive, run_calls: SequenceChunk
) -> None:
    """Mixed batches, chunked prefill, shared prefixes and preemption change no logprob by more than 1e-4."""
    core = make_core(name, num_pages=14, max_batch_tokens=40, kernels=kernels)
    shared = prompts([60])[0]
    starts = [shared[:60], shared[:60], shared[:37], *prompts([5, 50, 90], seed=1)]
    calls = [
        Call(f"call-{idx}", "s", prompt, Sampling(seed=idx, temperature=1.0 + 0.3 * (idx % 2), max_new_tokens=40))
        for idx, prompt in enumerate(starts)
    ]
    answers = run_calls(core, calls)
    check_logprobs(naive(name), answers, calls)
    stats = core.stats()
    assert stats.num_preemptions > 0 and stats.num_cached_tokens > 0
    assert stats.num_free_pages == stats.num_pages


def test_siblings_prefill_a_shared_prompt_once(make_core: MakeCore, run_calls: SequenceChunk) -> None:
    """Eight samples of one prompt compute it once, and each only its last token again."""
    core = make_core()
    prompt = prompts([45])[0]
    run_calls(core, [Call(f"call-{idx}", "s", prompt, Sampling(seed=idx, max_new_tokens=4)) for idx in range(8)])
    assert core.stats().num_prefilled_tokens == 45 + 7
    assert core.stats().num_cached_tokens == 7 * 44


def test_the_next_turn_prefills_only_what_is_new(make_core: MakeCore, naive, run_calls: SequenceChunk) -> None:
    """A later turn finds prompt and answer of the turn before, all but its last sampled token."""
    core = make_core()
    first = Call("first", "s", prompts([21])[0], Sampling(seed=1, max_new_tokens=9))
    answer = run_calls(core, [first])["first"]
    prompt = (*first.prompt_ids, *answer.token_ids, 7, 8, 9)
    second = Call("second", "s", prompt, Sampling(seed=2, max_new_tokens=5))
    answers = run_calls(core, [second])
    assert answers["second"].num_cached_tokens == 21 + 9 - 1
    check_logprobs(naive("llama"), answers, [second])


def test_a_seed_reproduces_whoever_else_is_in_the_batch(make_core: MakeCore, run_calls: SequenceChunk) -> None:
    """The same call gives the same tokens alone, in a crowd, and in an engine short of pages."""
    call = Call("mine", "s", prompts([30])[0], Sampling(seed=5, max_new_tokens=30))
    crowd = [
        Call(f"other-{idx}", "s", prompt, Sampling(seed=idx, max_new_tokens=25))
        for idx, prompt in enumerate(prompts([3, 40, 18, 30], seed=2))
    ]
    alone = run_calls(make_core(), [call])["mine"]
    assert run_calls(make_core(), [*crowd, call])["mine"].token_ids == alone.token_ids
    assert run_calls(make_core(num_pages=9, max_batch_tokens=16), [*crowd, call])["mine"].token_ids == alone.token_ids
    other_seed = dataclasses.replace(call, sampling=dataclasses.replace(call.sampling, seed=6))
    assert run_calls(make_core(), [other_seed])["mine"].token_ids != alone.token_ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_with_the_native_kernel_nothing_but_the_call_decides_its_bits(
    name: str, dtype: str, make_core: MakeCore, run_calls: SequenceChunk
) -> None:
    """Cold or with a cached prompt, in one piece or in chunks, alone or in a crowd: every logprob is the same bits."""
    call = Call("mine", "s", prompts([45])[0], Sampling(seed=5, max_new_tokens=12))
    core = make_core(name, dtype, kernels="native")
    cold = run_calls(core, [call])["mine"]
    warm = run_calls(core, [call])["mine"]
    crowd = [Call(f"other-{idx}", "s", prompt, call.sampling) for idx, prompt in enumerate(prompts([3, 40, 9], seed=2))]
    pressed = run_calls(make_core(name, dtype, num_pages=6, max_batch_tokens=19, kernels="native"), [*crowd, call])[
        "mine"
    ]
    assert warm.num_cached_tokens == 44
    assert (warm.token_ids, warm.logprobs) == (cold.token_ids, cold.logprobs)
    assert (pressed.token_ids, pressed.logprobs) == (cold.token_ids, cold.logprobs)


def test_an_answer_ends_by_each_of_its_rules(make_core: MakeCore, run_calls: SequenceChunk) -> None:
    """Extra stop ids, stop strings, max_new_tokens and the context's length end an answer, and say so."""
    core = make_core(num_pages=4)
    prompt = prompts([10])[0]
    free = run_calls(core, [Call("free", "s", prompt, Sampling(temperature=0.0))])["free"]
    assert free.stop_reason in ("length", "stop") and len(free.token_ids) <= 64 - 10
    third = free.token_ids[2]
    by_id = Sampling(temperature=0.0, stop_token_ids=(third,))
    by_length = Sampling(temperature=0.0, max_new_tokens=3)
    answers = run_calls(core, [Call("id", "s", prompt, by_id), Call("length", "s", prompt, by_length)])
    num_until = free.token_ids.index(third) + 1
    assert (answers["id"].token_ids, answers["id"].stop_reason) == (free.token_ids[:num_until], "stop")
    assert (answers["length"].token_ids, answers["length"].stop_reason) == (free.token_ids[:3], "length")


def test_a_stop_string_ends_the_answer(make_core: MakeCore, run_calls: SequenceChunk, tokenizer_folder: Path) -> None:
    """The answer ends with the token that completes a stop string, and says which one it was."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    core = make_core()
    prompt = prompts([10])[0]
    free = run_calls(core, [Call("free", "s", prompt, Sampling(seed=3, max_new_tokens=40))])["free"]
    string = next(text for token in free.token_ids if (text := tokenizer.decode([token])).isascii())
    sampling = Sampling(seed=3, max_new_tokens=40, stop=("never this", string))
    answer = run_calls(core, [Call("string", "s", prompt, sampling)])["string"]
    assert (answer.stop_string, answer.stop_reason) == (string, "stop")
    assert string in tokenizer.decode(answer.token_ids) and string not in tokenizer.decode(answer.token_ids[:-1])


GRAMMAR = 'start: /[a-z]{30,40}/ " " ("seven" | "wizards") "."'


def constrained_logprobs(
    naive, tokenizer: Tokenizer, call: Call, token_ids: tuple[int, ...]
) -> tuple[list[float], list[tuple[int, ...]]]:
    """Logprob of every token among what the grammar allows there, and what it allows, from full forward passes."""
    constraint = Constraints(tokenizer).start(call.sampling.grammar)
    logits = naive.logits([*call.prompt_ids, *token_ids])[len(call.prompt_ids) - 1 : -1] / call.sampling.temperature
    logprobs, allowed = [], []
    for row, token in zip(logits, token_ids, strict=True):
        ids = tuple(token_id for token_id in range(len(row)) if constraint.allows(token_id))
        logprobs.append(float(row[list(ids)].log_softmax(-1)[ids.index(token)]))
        allowed.append(ids)
        constraint.advance(token)
    return logprobs, allowed


@pytest.mark.parametrize("kernels", ["eager", "auto"])
def test_grammars_hold_under_load(
    kernels: str, make_core: MakeCore, naive, run_calls: SequenceChunk, tokenizer_folder: Path
) -> None:
    """Preempted, recomputed, beside free calls: an answer is a text of its grammar, drawn among what it allows."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    sampling = Sampling(temperature=1.2, grammar=GRAMMAR)
    calls = [
        Call(f"call-{idx}", "s", prompt, dataclasses.replace(sampling, seed=idx))
        for idx, prompt in enumerate(prompts([45, 20, 60, 33, 5, 50]))
    ]
    free = [Call(f"free-{idx}", "s", prompts([40])[0], Sampling(seed=idx, max_new_tokens=40)) for idx in range(3)]
    core = make_core(num_pages=14, max_batch_tokens=40, kernels=kernels)
    answers = run_calls(core, [*calls, *free])
    assert core.stats().num_preemptions > 0
    alone = run_calls(make_core(kernels=kernels), [calls[2], free[1]])
    assert alone["call-2"].token_ids == answers["call-2"].token_ids
    assert alone["free-1"].token_ids == answers["free-1"].token_ids and answers["free-1"].kept_ids == ()
    for call in calls:
        answer = answers[call.id]
        text = tokenizer.decode(answer.token_ids)
        assert answer.stop_reason == "stop" and re.fullmatch(r"[a-z]{30,40} (seven|wizards)\.", text), text
        logprobs, allowed = constrained_logprobs(naive("llama"), tokenizer, call, answer.token_ids)
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert answer.kept_ids == tuple(allowed)


def test_where_a_grammar_may_end_the_model_decides(
    make_core: MakeCore, run_calls: SequenceChunk, tokenizer_folder: Path
) -> None:
    """The end of turn is drawn among what could go on; stop strings and lengths end an answer before its grammar."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    (stop_id,) = tokenizer.stop_ids
    prompt = prompts([12])[0]
    ended = Sampling(grammar="start: /[ab]+/", logit_bias=((stop_id, 3.0),))
    calls = [Call(f"{seed}", "s", prompt, dataclasses.replace(ended, seed=seed)) for seed in range(6)]
    answers = run_calls(make_core(), calls)
    for answer in answers.values():
        assert re.fullmatch("[ab]+", tokenizer.decode(answer.token_ids[:-1])) and answer.token_ids[-1] == stop_id
        assert stop_id not in answer.kept_ids[0] and len(answer.kept_ids[1]) > 1
    shapes = {"string": {"stop": ("b",)}, "length": {"max_new_tokens": 2}}
    strict = [
        Call(name, "s", prompt, Sampling(seed=1, grammar="start: /[ab]{5}/", **more)) for name, more in shapes.items()
    ]
    cut = run_calls(make_core(), strict)
    assert (cut["length"].stop_reason, len(cut["length"].token_ids)) == ("length", 2)
    string = cut["string"]
    if string.stop_string is None:
        assert tokenizer.decode(string.token_ids) == "aaaaa" and string.stop_reason == "stop"
    else:
        assert (string.stop_string, string.stop_reason) == ("b", "stop")


def test_an_abort_within_a_grammar_keeps_its_tokens(make_core: MakeCore) -> None:
    """What was drawn so far, with what it was drawn among; the same call may then be asked again."""
    core = make_core()
    call = Call("call", "s", prompts([20])[0], Sampling(grammar=GRAMMAR))
    tokens = []
    for _ in range(2):
        core.add(call, 0)
        core.step()
        core.step()
        ended = core.abort("call")
        assert ended is not None and ended.answer is not None
        assert (ended.answer.stop_reason, len(ended.answer.kept_ids)) == ("abort", 2)
        tokens.append(ended.answer.token_ids)
    assert tokens[0] == tokens[1]


def test_biases_decide(make_core: MakeCore, run_calls: SequenceChunk) -> None:
    """A bias of 100 says one token again and again, with logprob 0; it is no cut."""
    sampling = Sampling(seed=1, max_new_tokens=5, logit_bias=((9, 100.0),))
    answer = run_calls(make_core(), [Call("call", "s", (5, 6, 7), sampling)])["call"]
    assert answer.token_ids == (9,) * 5 and answer.kept_ids == ()
    assert answer.logprobs == pytest.approx([0.0] * 5, abs=1e-5)


@pytest.mark.parametrize("keep_kv", [True, False])
def test_new_weights_label_tokens_and_hide_old_pages(
    keep_kv: bool, make_core: MakeCore, run_calls: SequenceChunk
) -> None:
    """After a publish tokens carry the new version, old prefixes are not found, stale keys are counted or redone."""
    core = make_core(keep_kv_on_publish=keep_kv)
    prompt = prompts([40])[0]
    core.add(Call("flying", "s", prompt, Sampling(max_new_tokens=6)), 0)
    core.step()
    core.step()
    core.publish(3, lambda: None)
    assert core.stats().num_stale_kv_tokens == (41 if keep_kv else 0)
    answers = run_calls(core, [Call("fresh", "s", prompt, Sampling(seed=1, max_new_tokens=2))])
    assert answers["flying"].versions == (0, 0, 3, 3, 3, 3)
    assert answers["fresh"].versions == (3, 3)
    # kept: one prompt then, one now. Recomputed: the one in flight twice, and of the fresh one its last token
    assert core.stats().num_prefilled_tokens == (40 + 40 if keep_kv else 40 + 40 + 1)
    assert answers["fresh"].num_cached_tokens == (0 if keep_kv else 39)
    with pytest.raises(UserError, match="greater than"):
        core.publish(3, lambda: None)


def test_an_abort_returns_the_tokens_so_far_and_frees_the_pages(make_core: MakeCore) -> None:
    """An aborted call loses no token, waiting or running; an unknown id is nothing."""
    core = make_core(max_running=1)
    for name in ("running", "waiting"):
        core.add(Call(name, "s", prompts([20])[0], Sampling(max_new_tokens=50)), 0)
    for _ in range(3):
        core.step()
    running, waiting = core.abort("running"), core.abort("waiting")
    assert running is not None and running.answer is not None and waiting is not None and waiting.answer is not None
    assert (len(running.answer.token_ids), running.answer.stop_reason) == (3, "abort")
    assert (len(waiting.answer.token_ids), waiting.answer.stop_reason) == (0, "abort")
    assert core.abort("unknown") is None
    assert core.is_idle and core.stats().num_free_pages == core.stats().num_pages


def test_scores_equal_a_full_forward(make_core: MakeCore, naive) -> None:
    """`score` gives the logprob of every token but the first, also where logits are capped."""
    for name in ("llama", "gemma2"):
        token_ids = prompts([70])[0]
        expected = naive(name).logprobs(token_ids[:1], token_ids[1:])
        assert torch.allclose(torch.tensor(make_core(name).score(token_ids)), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call("c", "s", (), Sampling()), "empty"),
        (Call("c", "s", (5,) * 64, Sampling()), "must be shorter than the context of 64"),
        (Call("c", "s", (5, 100_000), Sampling()), "token id 100000"),
        (Call("c", "s", (5,), Sampling(temperature=float("nan"))), "temperature"),
        (Call("c", "s", (5,), Sampling(top_p=0.0)), "top_p"),
        (Call("c", "s", (5,), Sampling(max_new_tokens=0)), "max_new_tokens"),
        (Call("c", "s", (5,), Sampling(stop=("",))), "stop string"),
        (Call("c", "s", (5,), Sampling(logit_bias=((3, 1.0), (100_000, 1.0)))), "token id 100000 after 3"),
        (Call("c", "s", (5,), Sampling(logit_bias=((4, 1.0), (4, 1.0)))), "must rise"),
        (Call("c", "s", (5,), Sampling(logit_bias=((4, float("inf")),))), "must be finite"),
        (Call("c", "s", (5,), Sampling(grammar="start: nosuch")), "unknown name"),
        (Call("c", "s", (5,), Sampling(), adapter="mine"), "adapter"),
    ],
)
def test_a_call_that_cannot_be_served_is_refused_by_name(call: Call, message: str, make_core: MakeCore) -> None:
    """What is wrong, what was got and what is allowed stand in the error."""
    with pytest.raises(UserError, match=message):
        make_core(num_pages=4).check(call)
