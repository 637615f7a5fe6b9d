"""Fifteen cases that are counted by hand in docs/cards.md, and laws over ten thousand others."""

import random

import pytest

from ludus.api.cards.choose import Cards, Fixed, Plan, choose, contexts_of
from ludus.api.cards.memory import GB, Job, Training, host_bytes, training_parts
from ludus.api.cards.refuse import refusal
from ludus.api.cards.shape import ModelShape
from ludus.errors import UserError
from tests.api.cards.shapes import ALL_MODULES, CONFIGS, job

MB = 10**6


def planned(name, cards, *, lora=False, **fixed):
    plan = choose(job(name, lora=lora), Cards.read(cards), Fixed(**fixed))
    assert isinstance(plan, Plan), f"{name} does not fit on {cards}"
    return plan


def gb(plan, use=0):
    """Parts of one kind of card, in GB with two digits."""
    return {part: round(size / GB, 2) for part, size in plan.uses[use].parts.items()}


# ---- the cases of docs/cards.md: every number on the right is counted there by hand


def test_a_small_model_whole_on_a_small_card():
    """1. Qwen3-0.6B, all weights, 1 x 24 GB."""
    plan = planned("0.6b", "1x24")
    assert (plan.how.moments, plan.how.has_checkpointing, plan.engine, plan.num_cards) == ("fp32", True, "local", 1)
    parts = gb(plan)
    assert parts["weights"] == 1.19
    assert parts["masters, fp32"] == parts["gradients, fp32"] == 2.38
    assert parts["moments, fp32"] == 4.77
    assert (parts["CUDA, libraries"], parts["gaps of the allocator"]) == (1.07, 0.96)
    assert plan.kv_bytes == plan.num_pages * 28 * 8 * 2 * 16 * 128 * 2


def test_four_billion_weights_on_one_card_take_bf16_moments():
    """2. Qwen3-4B, all weights, 1 x 80 GB: 14 bytes a weight are 56.3 GB; 18 would be 72.4."""
    plan = planned("4b", "1x80")
    assert (plan.how.moments, plan.how.has_checkpointing) == ("bf16", True)
    parts = gb(plan)
    assert [parts[part] for part in ("weights", "masters, fp32", "gradients, fp32", "moments, bf16")] == [
        8.04,
        16.09,
        16.09,
        16.09,
    ]
    assert round(14 * 4_022_468_096 / GB, 1) == 56.3


def test_four_billion_weights_with_exact_moments_take_the_machines_memory():
    """3. The same with fp32 moments: 72.4 GB, and 4.3 that are never used, leave too little; 6 bytes a weight are
    24.1, and 12 are in the machine's memory."""
    exact = {"ranks": 1, "engine": "local", "replicas": 1, "moments": "fp32"}
    plan = planned("4b", "1x80", **exact)
    assert plan.how.in_host and plan.host_bytes == 12 * 4_022_468_096
    parts = gb(plan)
    assert (parts["weights"], parts["gradients, fp32"]) == (8.04, 16.09)
    assert not {"masters, fp32", "moments, fp32"} & parts.keys()
    fixed = Fixed(**exact, in_host=False)
    assert choose(job("4b"), Cards.read("1x80"), fixed) is None
    said = refusal(job("4b"), Cards.read("1x80"), fixed)
    assert "72.4 GB lie on a card" in said
    assert "moments, fp32 32.2 GB" in said
    assert "The nearest that fits: trainer.offload, trainer.optimizer.moments" in said


def test_four_billion_weights_with_adapters_on_a_small_card():
    """4. Qwen3-4B, LoRA of rank 16, 1 x 24 GB: 33,030,144 weights of adapters at 16 bytes."""
    plan = planned("4b", "1x24", lora=True)
    assert job("4b", lora=True).num_adapted == 33_030_144
    parts = gb(plan)
    assert parts["weights"] == 8.11
    assert parts["moments, fp32"] == 0.26


def test_eight_billion_weights_with_adapters_on_a_small_card():
    """5. Qwen3-8B, LoRA of rank 16, 1 x 24 GB: 16.4 GB of weights leave rows of 2,048 tokens and pages for 6,704."""
    plan = planned("8b", "1x24", lora=True)
    assert job("8b", lora=True).num_adapted == 43_646_976
    assert (plan.row_tokens, plan.how.has_checkpointing) == (2048, True)
    assert plan.kv_tokens == 6704
    assert gb(plan)["weights"] == 16.47


def test_eight_billion_weights_whole_on_one_card():
    """6. Qwen3-8B, all weights, 1 x 80 GB: 14 bytes a weight are 114.7 GB, 6 are 49.1; 98.3 are in the machine's
    memory."""
    plan = planned("8b", "1x80")
    assert (plan.how.in_host, plan.how.moments, plan.engine) == (True, "fp32", "local")
    assert [gb(plan)[part] for part in ("weights", "gradients, fp32")] == [16.38, 32.76]
    assert round(plan.host_bytes / GB, 1) == 98.3
    assert choose(job("8b"), Cards.read("1x80"), Fixed(in_host=False)) is None


def test_eight_billion_weights_whole_on_eight_cards():
    """7. Qwen3-8B, all weights, 8 x 80 GB: three ranks keep 49.1 GB each, five cards sample."""
    plan = planned("8b", "8x80")
    assert (plan.how.ranks, plan.engine, plan.replicas, plan.how.moments) == (3, "server", 5, "fp32")
    trains = gb(plan)
    assert [trains[part] for part in ("weights", "masters, fp32", "moments, fp32")] == [5.46, 10.92, 21.84]
    assert gb(plan, 2)["weights that sample"] == 16.38


def test_thirty_two_billion_weights_whole_on_eight_cards():
    """8. Qwen3-32B, all weights, 8 x 80 GB: six ranks would keep 76 GB each with bf16 moments; with the optimizer in
    the machines' memory 32.8, and 20.4 that they gather. Two cards sample."""
    plan = planned("32b", "8x80")
    assert (plan.how.in_host, plan.how.ranks, plan.how.moments) == (True, 6, "fp32")
    assert (plan.engine, plan.replicas, plan.tensor_parallel) == ("vllm", 1, 2)
    parts = gb(plan)
    assert (parts["weights"], parts["gradients, fp32"], parts["gathered from other ranks"]) == (10.92, 21.84, 20.43)
    assert round(plan.host_bytes / GB) == 393


def test_thirty_two_billion_weights_with_adapters_on_eight_cards():
    """9. Qwen3-32B, LoRA of rank 16, 8 x 80 GB: two ranks keep 32.9 GB of weights each; vLLM samples on two cards."""
    plan = planned("32b", "8x80", lora=True)
    assert (plan.how.ranks, plan.engine, plan.replicas, plan.tensor_parallel) == (2, "vllm", 3, 2)
    assert gb(plan)["weights"] == 32.9


def test_seventy_billion_weights_with_adapters_on_eight_cards():
    """10. Llama-3-70B, LoRA of rank 16, 8 x 80 GB: four ranks keep 35.4 GB each; one vLLM samples on four."""
    plan = planned("70b", "8x80", lora=True)
    assert (plan.how.ranks, plan.engine, plan.replicas, plan.tensor_parallel) == (4, "vllm", 1, 4)
    assert gb(plan)["weights"] == 35.38


def test_four_billion_weights_on_a_card_that_vllm_has_in_turns():
    """11. Qwen3-4B, all weights, 1 x 80 GB, engine.placement=shared: 57.0 GB of pages where a card of both at once has
    12.1; only the trainer's 8.04 GB of weights stay, and what a vLLM keeps asleep."""
    plan = planned("4b", "1x80", engine="shared", ranks=1, replicas=1)
    assert (plan.how.moments, plan.num_cards, plan.num_sampling) == ("bf16", 1, 0)
    trains, samples = gb(plan), gb(plan, 1)
    assert [trains[part] for part in ("weights", "masters, fp32", "gradients, fp32", "moments, bf16")] == [
        8.04,
        16.09,
        16.09,
        16.09,
    ]
    assert trains["vLLM asleep"] == samples["vLLM asleep"] == 1.34
    assert (samples["weights"], samples["weights that sample"]) == (8.04, 8.04)
    assert "masters, fp32" not in samples and "weights that sample" not in trains
    assert samples["pages of keys and values"] == 57.06
    assert [use.is_in_turn for use in plan.uses] == [False, True]
    exact = Fixed(ranks=1, engine="shared", replicas=1, moments="fp32", in_host=False)
    assert choose(job("4b"), Cards.read("1x80"), exact) is None  # 72.4, and 5.6 that are never used


def test_a_card_in_turns_holds_the_weights_twice_while_it_samples():
    """12. Qwen3-4B, LoRA of rank 16, 1 x 24 GB: 16.2 of the 24 GB; Qwen3-8B would take 32.9."""
    plan = planned("4b", "1x24", lora=True, engine="shared", ranks=1, replicas=1)
    samples = gb(plan, 1)
    assert (samples["weights"], samples["weights that sample"]) == (8.11, 8.11)
    assert plan.how.moments == "fp32"
    assert plan.context_tokens == min(plan.longest_tokens, plan.kv_tokens)
    fixed = Fixed(ranks=1, engine="shared", replicas=1)
    assert choose(job("8b", lora=True), Cards.read("1x24"), fixed) is None


def test_eight_billion_weights_in_four_bits_on_a_small_card():
    """13. Qwen3-8B, LoRA of rank 16 over 4 bits, 1 x 24 GB: 36 x 192,937,984 weights of layers at 0.516 bytes are
    3.58 GB, the rest at 2 bytes 2.58."""
    work = job("8b", lora=True, is_quantized=True)
    plan = choose(work, Cards.read("1x24"), Fixed())
    assert plan is not None and plan.how.ranks == 1
    assert gb(plan)["weights"] == 6.16
    assert (plan.row_tokens, plan.how.in_host) == (6848, False)  # 2,048 in 16 bits
    assert choose(work, Cards.read("8x80"), Fixed()).how.ranks == 1  # they are not shared out


def test_seventy_billion_weights_whole_do_not_fit_eight_cards():
    """14. Llama-3-70B, all weights, 8 x 80 GB: six ranks would keep 70.6 GB each and gather 29.6."""
    assert choose(job("70b"), Cards.read("8x80"), Fixed()) is None
    said = refusal(job("70b"), Cards.read("8x80"), Fixed())
    assert "adapters, model.lora.rank=16 (trainer.ranks=4, engine.kind=vllm, engine.replicas=1)" in said


def test_a_critic_and_a_reference_stay_with_their_weights():
    """Of a second model that is trained only its weights, and of the initial weights all."""
    work = job("0.6b", has_critic=True, has_reference=True)
    plan = choose(work, Cards.read("1x80"), Fixed(ranks=1, engine="shared", replicas=1))
    weights = 2 * 596_049_920
    samples = plan.uses[1].parts
    assert (samples["weights"], samples["reference weights"], samples["critic"]) == (weights, weights, 2 * weights)
    assert host_bytes(work, plan.how, in_turns=True) == 2 * 12 * 596_049_920 + weights


# ---- laws


def random_case(rng):
    """Any model from 0.6B to 70B, whole or with adapters, on 1 to 64 cards of any size, with keys given or not."""
    config = dict(CONFIGS[rng.choice(sorted(CONFIGS))])
    if rng.random() < 0.3:
        config["num_hidden_layers"] = rng.randint(4, 80)
    config["max_position_embeddings"] = rng.choice((2048, 8192, 32_768, 40_960, 131_072))
    lora = (rng.choice((8, 16, 64)), ALL_MODULES) if rng.random() < 0.5 else None
    about = {
        "has_critic": rng.random() < 0.15,
        "has_reference": rng.random() < 0.2,
        "has_several_steps": rng.random() < 0.2,
    }
    about["is_quantized"] = lora is not None and rng.random() < 0.3
    batch = {"max_running": rng.choice((16, 64, 256, 1024)), "max_batch_tokens": rng.choice((2048, 8192))}
    work = Job(ModelShape.of(config), rng.choice((2, 2, 2, 4)), lora, **about, **batch)
    cards = Cards(
        rng.choice((1, 1, 1, 2, 3, 4, 8, 8, 16, 64)), int(rng.choice((16, 24, 40, 48, 80, 80, 96, 141, 192)) * GB)
    )
    given = {}
    if rng.random() < 0.2:
        given["row_tokens"] = rng.choice((512, 1000, 4096))
    if rng.random() < 0.1:
        given["kv_bytes"] = rng.choice((2**29, 2**33))
    if rng.random() < 0.1:
        given["context_length"] = rng.choice((1024, 2048, 16_384, 131_072))
        given["context"] = rng.choice((1, None))
    if rng.random() < 0.2:
        given["in_host"] = rng.random() < 0.5
    if rng.random() < 0.2:
        given |= {"ranks": rng.choice((1, 2, 5)), "engine": "local", "replicas": 1}
    elif rng.random() < 0.2:
        given |= {"ranks": 1, "engine": "shared", "replicas": 1}
    return work, cards, Fixed(**given)


def check(work, cards, fixed, plan):
    assert plan.num_cards <= cards.count
    for use in plan.uses:
        assert all(size >= 0 for size in use.parts.values()), use
        assert use.num_bytes <= cards.num_bytes, use  # never over the card
    if fixed.row_tokens is not None:
        assert plan.row_tokens == fixed.row_tokens <= plan.longest_tokens
    if fixed.context_length is not None:
        assert plan.longest_tokens >= fixed.context_length
    # never under 90 % where more rows or pages would help
    trains, samples = plan.uses[0], plan.uses[-1]
    is_full = trains.num_bytes >= 0.9 * cards.num_bytes
    if plan.engine == "local":
        assert is_full or (plan.rows_are_most and plan.pages_are_most), plan
    else:
        assert is_full or plan.rows_are_most, plan
        assert samples.num_bytes >= 0.9 * cards.num_bytes or plan.pages_are_most, plan


@pytest.mark.parametrize("tenth", range(10))
def test_a_plan_fits_and_leaves_nothing_that_would_help(tenth):
    """Over 10,000 random cases: never over a card, never under 90 % of it in vain, and more cards never plan worse."""
    rng = random.Random(tenth)
    num_plans = 0
    for number in range(1000):
        work, cards, fixed = random_case(rng)
        plan = choose(work, cards, fixed)
        if plan is None:
            continue
        num_plans += 1
        check(work, cards, fixed, plan)
        if number % 3 == 0:
            more = choose(work, Cards(cards.count + rng.choice((1, 2, 5)), cards.num_bytes), fixed)
            assert more is not None
            assert more.rank >= plan.rank
    assert num_plans > 400


def test_what_does_not_fit_is_refused_with_what_does():
    """Whatever is named as the nearest does fit: the words are made from a plan."""
    rng = random.Random(7)
    refused = []
    while len(refused) < 100:
        work, cards, fixed = random_case(rng)
        if choose(work, cards, fixed) is None:
            refused.append(refusal(work, cards, fixed))
    assert all("does not fit on" in said for said in refused)
    assert sum("The nearest that fits" in said for said in refused) > 60


@pytest.mark.parametrize("text", ["", "8", "x80", "0x80", "8x", "8*80", "eight x 80"])
def test_cards_are_given_in_one_form(text):
    """Else an example is shown."""
    with pytest.raises(UserError, match="1x24 or 8x80"):
        Cards.read(text)


# ---- rows and layers that several ranks compute together


def test_rows_over_ranks_are_longer():
    """A rank needs memory for its part alone; keys and values of whole rows are shared by heads."""
    fixed = {"ranks": 4, "engine": "elsewhere", "context_length": 131_072}
    assert choose(job("8b"), Cards.read("4x80"), Fixed(**fixed)) is None
    plan = planned("8b", "4x80", context=4, **fixed)
    assert plan.longest_tokens >= 131_072 and plan.how.context == 4


def test_the_refusal_names_the_ranks_over_which_a_row_would_fit():
    """With the number of ranks and the length that were given."""
    said = refusal(job("8b"), Cards.read("4x80"), Fixed(ranks=4, engine="elsewhere", context_length=131_072))
    assert "The nearest that fits: rows cut over ranks, trainer.context_parallel=" in said


def test_layers_over_ranks_are_gathered_in_parts():
    """Of 32 billion weights a layer has 487,598,336; a half is gathered. What norms and adapters have twice is less."""
    whole, cut = (training_parts(job("32b", lora=True), Training(ranks=2, tensor=tensor)) for tensor in (1, 2))
    gathered = "gathered from other ranks"
    assert whole[gathered] - cut[gathered] == 2 * 2 * (487_598_336 - 487_598_336 // 2)
    # of each adapter the matrix that is as wide as the model: 64 layers, rank 16, 7 modules of width 5,120
    assert cut["masters, fp32"] - whole["masters, fp32"] == 4 * 64 * 16 * 7 * 5120 // 2


def test_ranks_are_a_multiple_of_those_of_a_row():
    """No other placement is tried."""
    plan = choose(job("8b", lora=True), Cards.read("8x80"), Fixed(tensor=2, context=2))
    assert plan is not None and plan.how.ranks % 4 == 0


def test_rows_are_cut_over_as_few_ranks_as_a_long_sequence_needs():
    """15. Qwen3-8B, all weights, 8 x 80 GB, a sequence of 131,072 tokens: two ranks take 42.3 GB each for it. Where it
    fits, and where no such length was given, nothing is cut; a model is never cut over more ranks than it has heads."""
    long = {"context_length": 131_072, "context": None}
    assert choose(job("8b"), Cards.read("8x80"), Fixed(context_length=131_072)) is None
    plan = planned("8b", "8x80", **long)
    assert (plan.how.in_host, plan.how.ranks, plan.how.context) == (True, 4, 2)
    assert (plan.engine, plan.replicas, plan.tensor_parallel) == ("vllm", 1, 4)
    assert gb(plan)["a row, or a step"] == 42.35
    assert plan.longest_tokens >= 131_072 and all(use.num_bytes <= 80 * GB for use in plan.uses)
    for fewer in (each for each in contexts_of(job("8b"), Fixed()) if each < plan.how.context):
        assert choose(job("8b"), Cards.read("8x80"), Fixed(**{**long, "context": fewer})) is None
    assert planned("8b", "8x80", context=None) == planned("8b", "8x80")
    assert planned("0.6b", "1x80", context=None, context_length=16_384).how.context == 1
    assert contexts_of(job("0.6b"), Fixed(tensor=4)) == (1, 2, 4)
