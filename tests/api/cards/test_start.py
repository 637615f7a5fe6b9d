"""What a start fills in from the plan, on a card that is a stand-in: its size and what is free of it."""

import json
from types import SimpleNamespace

import pytest
import torch

from ludus.api.cards import start
from ludus.api.cards.choose import Cards
from ludus.api.cards.start import counted_cards, plan_for, planned
from ludus.config import load_config
from ludus.errors import ConfigError, UserError
from ludus.processes.cards import Card
from ludus.runs.folder import write_config
from tests.api.cards.shapes import CONFIGS

GB = 10**9
PLANNED = ("trainer.row_tokens", "trainer.activation_checkpointing", "trainer.optimizer.moments", "engine.kv_bytes")


@pytest.fixture
def model(tmp_path):
    """A folder of the named size without weights, which a plan does not need."""

    def make(name, **changes):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**CONFIGS[name], **changes}))
        (folder / "tokenizer.json").write_text("{}")
        return f"model.path={folder}"

    return make


@pytest.fixture
def machine(monkeypatch):
    """A machine with cards of these sizes in GB, of which so much is free.

    order: numbers of the cards in CUDA's order. None: the driver's.
    """

    def make(*sizes, free=None, kept=0, order=None):
        cards = tuple(
            Card(f"GPU-{n}", size * GB, (size if free is None else free[n]) * GB) for n, size in enumerate(sizes)
        )
        monkeypatch.setattr(start, "find_cards", lambda: cards)
        cuda = SimpleNamespace(
            is_available=lambda: bool(sizes),
            device_count=lambda: len(sizes),
            current_device=lambda: 0,
            memory_reserved=lambda _: kept * GB,
            memory_allocated=lambda _: 0,
            get_device_properties=lambda n: SimpleNamespace(uuid=str(n if order is None else order[n])),
        )
        monkeypatch.setattr(torch, "cuda", cuda)

    return make


def values(config):
    return {key: start._value(config, key) for key in (*PLANNED, "model.context_length")}


def test_a_processor_has_no_plan(model, machine):
    """Every default stays: without a card, and where the processor was asked for beside one."""
    config = load_config(None, [model("4b")])
    machine()
    assert planned(config) is config
    machine(80)
    asked = load_config(None, [model("4b"), "model.device=cpu"])
    assert planned(asked) is asked


def test_a_card_is_filled(model, machine):
    """What was not given comes from the plan, which a second look leaves as it is."""
    machine(80)
    config = planned(load_config(None, [model("4b")]))
    found = values(config)
    assert found["trainer.optimizer.moments"] == "bf16"
    assert found["trainer.activation_checkpointing"] is True
    assert found["engine.kv_bytes"] > 5 * GB
    assert found["trainer.row_tokens"] == found["model.context_length"] > 8192
    assert planned(config) == config


@pytest.mark.parametrize(
    ("key", "are_kept"), [("seed", False), ("algorithm.minibatches", True), ("algorithm.epochs", True)]
)
def test_weights_before_a_batch_of_several_steps_are_planned_with(model, key, are_kept):
    """Whether the steps are minibatches or epochs."""
    assert start.job_of(load_config(None, [model("4b"), f"{key}=2"])).has_several_steps is are_kept


def test_what_was_given_stays(model, machine):
    """Also where it is the default, and the rest is planned around it."""
    machine(80)
    given = ["trainer.row_tokens=1024", "engine.kv_bytes=536870912", "trainer.activation_checkpointing=false"]
    found = values(planned(load_config(None, [model("0.6b"), *given])))
    assert [found[key] for key in PLANNED] == [1024, False, "fp32", 536870912]
    assert found["model.context_length"] is None  # paths of all of its context fit


def test_what_others_hold_is_not_planned_with(model, machine):
    """The free memory of the run's own card counts, with what torch keeps of what this process gave back."""
    machine(80, 80, free=[40, 80])
    half = values(planned(load_config(None, [model("0.6b")])))["engine.kv_bytes"]
    machine(80, 80, free=[40, 80], kept=30)
    more = values(planned(load_config(None, [model("0.6b")])))["engine.kv_bytes"]
    machine(80, 80, free=[40, 80])
    other = values(planned(load_config(None, [model("0.6b"), "model.device=cuda:1"])))["engine.kv_bytes"]
    assert half < more < other


def test_the_runs_own_card_is_known_by_its_uuid(model, machine):
    """CUDA's first card need not be the driver's: it puts the faster one first."""
    config = load_config(None, [model("0.6b")])
    machine(24, 80)
    small = planned(config).engine.kv_bytes
    machine(24, 80, order=[1, 0])
    assert planned(config).engine.kv_bytes > small


def test_a_resumed_run_keeps_its_plan(model, machine, tmp_path, caplog):
    """Though less is free now; what is given now counts, and other processes are planned for anew. A smaller card is
    told."""
    keys = [model("0.6b"), f"run_root={tmp_path}", "name=begun"]
    machine(80)
    begun = planned(load_config(None, keys))
    begun.folder.mkdir()
    write_config(begun.folder, begun.to_yaml())
    machine(80, free=[40])
    again = planned(load_config(None, keys), goes_on=True)
    assert values(again) == values(begun) != values(planned(load_config(None, keys)))
    more = planned(load_config(None, [*keys, "trainer.row_tokens=512"]), goes_on=True)
    assert values(more) == {**values(begun), "trainer.row_tokens": 512}
    others = planned(load_config(None, [*keys, "engine.replicas=2"]), goes_on=True)
    assert others.engine.kv_bytes != again.engine.kv_bytes
    assert not caplog.records
    machine(24)
    assert values(planned(load_config(None, keys), goes_on=True)) == values(begun)
    assert "the run was begun with this plan, so this starts all the same" in caplog.text
    (begun.folder / "config.yaml").unlink()
    assert values(planned(load_config(None, keys), goes_on=True)) != values(begun)


def test_a_run_that_cannot_fit_is_refused_before_it_loads(model, machine, caplog, monkeypatch):
    """With the nearest that does; whoever gives rows and pages starts all the same, and is told."""
    machine(80)
    monkeypatch.setattr(start, "free_memory_bytes", lambda: 20 * GB)
    with pytest.raises(
        ConfigError, match=r"8\.19 billion weights does not fit on 1 card of 80\.0 GB.*model\.lora\.rank=16"
    ):
        planned(load_config(None, [model("8b")]))
    given = load_config(None, [model("8b"), "trainer.row_tokens=512", "engine.kv_bytes=1000000000"])
    assert planned(given) is given
    assert "this starts all the same" in caplog.text


def test_idle_cards_are_told(model, machine, caplog):
    """A start places no processes by itself."""
    machine(80, 80, 80, 80)
    config = planned(load_config(None, [model("0.6b")]))
    assert "1 of 4 cards are used; `ludus plan` tells what uses them all" in caplog.text
    assert (config.engine.kind, config.trainer.ranks) == ("local", 1)


def test_a_model_that_no_plan_knows_starts_as_before(model, machine, caplog):
    """And says so."""
    machine(80)
    config = load_config(None, [model("0.6b", num_experts=8)])
    assert planned(config) is config
    assert "mixture of experts" in caplog.text


SHARED = ["engine.kind=vllm", "engine.placement=shared"]


def test_a_card_that_vllm_has_in_turns_is_filled_twice(model, machine, monkeypatch):
    """With rows in the trainer's turn and with pages in vLLM's, which is told how many; no other card is needed."""
    monkeypatch.setattr(start, "free_memory_bytes", lambda: 500 * GB)
    machine(80)
    found = values(planned(load_config(None, [model("4b"), *SHARED])))
    assert found["engine.kv_bytes"] > 50 * GB
    assert found["trainer.optimizer.moments"] == "bf16"
    plan, keys = plan_for(load_config(None, [model("4b"), *SHARED]), Cards.read("1x80"))
    assert plan.num_cards == 1
    assert keys["engine.kv_bytes"] == plan.kv_bytes == found["engine.kv_bytes"]
    assert not any(key.startswith("scheduler") for key in keys)


def test_what_waits_must_fit_into_the_machine(model, machine, monkeypatch):
    """Masters and moments in the processor's memory, and the weights of a vLLM that sleeps."""
    machine(80)
    monkeypatch.setattr(start, "free_memory_bytes", lambda: 30 * GB)
    with pytest.raises(
        ConfigError, match=r"keeps 40\.2 GB in the machine's memory.* 30\.0 GB are free: .*lora\.rank=16"
    ):
        planned(load_config(None, [model("4b"), *SHARED]))
    planned(load_config(None, [model("4b"), *SHARED, "model.lora.rank=16"]))


def test_who_only_samples_has_all_for_pages(model, machine):
    """Nothing is set aside for training; a model that is larger than the card is refused."""
    machine(24)
    config = load_config(None, [model("8b")])
    found = planned(config, trains=False)
    assert 3 * GB < found.engine.kv_bytes < 6 * GB
    assert found.trainer == config.trainer
    with pytest.raises(ConfigError, match=r"does not fit on a card of 24\.0 GB"):
        planned(load_config(None, [model("14b")]), trains=False)
    beside = planned(load_config(None, [model("4b"), *SHARED]), trains=False)  # this process has loaded it as well
    assert 2 * GB < beside.engine.kv_bytes < 5 * GB


def test_a_teacher_takes_its_place(model, tmp_path):
    """A second model in the run's own process, or the weights of the beginning; not one that is served elsewhere."""

    def teacher(*keys):
        asked = load_config(None, [model("0.6b"), "algorithm.name=distillation", *keys])
        return plan_for(asked, Cards.read("1x80"))[0].uses[0].parts.get("teacher")

    path = model("4b").removeprefix("model.path=")
    assert teacher("teacher.kind=model", f"teacher.path={path}") == 2 * 4_022_468_096
    assert teacher("teacher.kind=model", f"teacher.path={path}", "teacher.device=cpu") is None
    (tmp_path / "run").mkdir()  # which says where its model is once it is loaded: as large as the policy, then
    assert teacher("teacher.kind=model", f"teacher.path={tmp_path}/run") == 2 * 596_049_920
    assert teacher("teacher.kind=policy", "teacher.weights=first") == 2 * 596_049_920
    assert teacher("teacher.kind=server", "teacher.urls=[http://h:1]") is None


def test_a_plan_places_processes_where_nothing_is_given(model):
    """Keys that place roles, for all cards; a run that names its engine or ranks keeps them."""
    _, keys = plan_for(load_config(None, [model("8b")]), Cards.read("8x80"))
    assert keys["trainer.ranks"] == 3
    assert (keys["engine.kind"], keys["engine.replicas"]) == ("server", 5)
    assert keys["scheduler.trainer.gpus"] == keys["scheduler.engine.gpus"] == 1
    config = load_config(None, [model("8b"), *(f"{key}={json.dumps(value)}" for key, value in keys.items())])
    again, left = plan_for(config, Cards.read("8x80"))
    assert left == {}
    assert (again.how.ranks, again.engine, again.replicas) == (3, "server", 5)
    vllm, keys = plan_for(load_config(None, [model("8b"), "engine.kind=vllm", "trainer.ranks=4"]), Cards.read("8x80"))
    assert (vllm.how.ranks, vllm.engine) == (4, "vllm")
    assert "engine.kv_bytes" not in keys and keys["engine.stream_interval"] == 16


def test_cards_are_counted_or_given(monkeypatch):
    """The smallest of them counts; a machine without any, or one that tells nothing, asks for them."""
    monkeypatch.setattr(start, "find_cards", lambda: (Card("0", 80 * GB, 79 * GB), Card("1", 80 * GB, 70 * GB)))
    assert counted_cards() == Cards(2, 70 * GB)
    for cards in ((), (Card("0", None),)):
        monkeypatch.setattr(start, "find_cards", lambda cards=cards: cards)
        with pytest.raises(UserError, match="--cards 1x24"):
            counted_cards()


def test_an_optimizer_goes_where_there_is_room(model, machine, monkeypatch):
    """Into the machine's memory if the card has none, unless that has none either; what was given stays."""
    machine(40)
    monkeypatch.setattr(start, "free_memory_bytes", lambda: 60 * GB)
    trainer = planned(load_config(None, [model("4b")])).trainer
    assert (trainer.offload, trainer.optimizer.moments) == ("optimizer", "fp32")
    monkeypatch.setattr(start, "free_memory_bytes", lambda: 40 * GB)
    lacking = r"trainer\.offload=optimizer keeps 48\.3 GB in the machine's memory"
    for given, said in (([], "does not fit on 1 card.*" + lacking), (["trainer.offload=optimizer"], "^" + lacking)):
        with pytest.raises(ConfigError, match=said):
            planned(load_config(None, [model("4b"), *given]))
    short = planned(load_config(None, [model("4b"), "trainer.optimizer.moments=bf16"])).trainer
    assert short.offload == "optimizer"
    with pytest.raises(ConfigError, match=r"The nearest that fits: trainer\.offload"):
        planned(load_config(None, [model("4b"), "trainer.offload=none"]))
    machine(80)
    assert planned(load_config(None, [model("4b")])).trainer.offload == "none"


def test_a_sequence_too_long_for_a_card_is_cut_over_the_ranks_that_there_are(model, machine, tmp_path):
    """Instead of ending the run; a resumed run keeps it, and what is given is not changed."""
    keys = [model("8b", max_position_embeddings=131_072), "trainer.ranks=4", "scheduler.trainer.gpus=1"]
    keys += ["engine.kind=vllm", "engine.urls=[http://h:1]", f"run_root={tmp_path}", "name=begun"]
    machine(80, 80, 80, 80)
    assert planned(load_config(None, keys)).trainer.context_parallel == 1  # no such length is asked for
    keys.append("model.context_length=131072")
    begun = planned(load_config(None, keys))
    assert (begun.trainer.context_parallel, begun.trainer.offload) == (2, "optimizer")
    assert begun.engine.stream_interval == 16
    begun.folder.mkdir()
    write_config(begun.folder, begun.to_yaml())
    machine(80, 80, 80, 80, free=[70] * 4)
    again = planned(load_config(None, keys), goes_on=True)
    assert again.trainer == begun.trainer
    with pytest.raises(ConfigError, match=r"does not fit on 4 cards .*trainer\.context_parallel=4"):
        planned(load_config(None, [*keys, "trainer.context_parallel=1"]), goes_on=True)


def test_a_vllm_without_a_card_of_its_own_is_told_of_turns(model, machine):
    """A machine with one card; that is nearer than a second one."""
    machine(80)
    with pytest.raises(ConfigError, match=r"The nearest that fits: .*engine\.placement=shared"):
        planned(load_config(None, [model("4b"), "engine.kind=vllm"]))
