"""The whole tree: what cannot act together is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

from ludus.algorithms.losses.clip import ClipSettings
from ludus.algorithms.normalisers import ConstantSettings
from ludus.config import Config, check_training, load_config
from ludus.errors import ConfigError
from ludus.settings import with_overrides


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rollout.agent.mode=thread"],
            r"rollout.agent: 'thread' is not available; there are inline, subproc, online",
        ),
        (["total_train_steps=1", "total_train_epochs=1"], "say the same thing twice"),
        (["gconfig.n_samples=2", "rollout.min_members=3"], "no group could ever be complete"),
        (["algorithm.normaliser=constant"], "algorithm: normaliser.tokens must be given, or gconfig.max_new_tokens"),
        (["trainer.minibatches=4"], r"unknown key 'trainer.minibatches'; did you mean 'algorithm.minibatches'\?"),
        (["name=../elsewhere"], "must be a folder's name"),
        (["train_dataset.mix.sums.wieght=2"], r"did you mean 'train_dataset.mix.sums.weight'\?"),
        (["rollout.max_concurent_rollouts=8"], r"did you mean 'rollout.max_concurrent_rollouts'\?"),
        (["rollout.replay.share=0.1"], r"share=0.1 of train_dataset.batch_size=8 is less than one group; set .* 0.125"),
        (["rollout.replay.share=0.5", "algorithm.correction=none"], "correction=none counts them as the policy's own"),
        (
            ["rollout.replay.share=0.5", "algorithm.correction={kind: mask, weighs: false}"],
            "correction=mask with weighs=false counts them as the policy's own",
        ),
        (
            ["rollout.replay.share=0.5", "algorithm.name=gpg"],
            "loss=policy_gradient with correction=bypass has no",
        ),
        (["rollout.replay.share=0.5", "algorithm.name=rae"], "advantage=rae would count their rewards twice"),
        (
            ["train_dataset.demonstrations=target", "algorithm.name=dpo"],
            "algorithm.loss=dpo compares members",
        ),
        (
            ["train_dataset.demonstrations=target", "algorithm.name=distillation", "teacher={kind: model, path: x}"],
            "algorithm.distillation judges each token that the policy sampled",
        ),
        (["n_samples=8"], r"did you mean 'gconfig.n_samples'\?"),
        (["total_train_step=8"], r"did you mean 'total_train_steps'\?"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    """Unknown keys and values that contradict each other are errors that say what would do."""
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_what_cannot_share_a_card_is_told_at_once() -> None:
    """One message names every key in the way, with what to set instead; alone on its card nothing is."""
    with pytest.raises(ConfigError, match=r"engine\.kind=local \(to vllm, which can sleep; local needs no placement\)"):
        load_config(None, ["engine.placement=shared"])
    shared = ["engine.kind=vllm", "engine.placement=shared"]
    assert load_config(None, shared).engine.placement == "shared"
    everything = [
        *("engine.replicas=2", "engine.tensor_parallel_size=2", "engine.weights=nccl", "trainer.ranks=2"),
        *("scheduler={type: ray, engine: {gpus: 1}}", "rollout.max_head_offpolicyness=2"),
        *("algorithm.name=distillation", "teacher={kind: model, path: x}"),
    ]
    with pytest.raises(ConfigError) as refused:
        load_config(None, [*shared, *everything])
    for words in (
        "engines on 4 cards (to one",
        "engine.weights=nccl (to auto",
        "trainer.ranks=2 (to 1)",
        "scheduler.type=ray (to local)",
        "scheduler.engine.gpus=1 (to 0)",
        "rollout.max_head_offpolicyness=2 and rollout.stale_tokens=mask (to 0 and mask)",
        "teacher.kind=model (to server",
        "or leave engine.placement out",
    ):
        assert words in str(refused.value)
    for alone in (["engine.urls=[http://a:1, http://b:1]"], ["rollout.stale_tokens=train"]):
        with pytest.raises(ConfigError, match="which the two have in turns; change"):
            load_config(None, [*shared, *alone])
    load_config(
        None, [*shared, "engine.urls=[http://a:1]", "algorithm.name=distillation", "teacher={kind: server, urls: [x]}"]
    )


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        (["engine.keep_kv_on_publish=false"], "engine.keep_kv_on_publish (with rollout.max_head_offpolicyness=0"),
        (
            ["algorithm.demonstrations.gamma=0.5"],
            "algorithm.demonstrations (train_dataset.demonstrations names",
        ),
        (["scheduler.trainer.cpus=2"], "scheduler.trainer (with trainer.ranks=1"),
        (["scheduler.slurm.nodes=2"], "scheduler.slurm (type is 'local', and it is a key of 'slurm')"),
        (["scheduler.engine.memory_gb=2"], "scheduler.engine.memory_gb (type is 'local', where nothing is reserved)"),
        (
            ["engine.urls=[http://a:1]"],
            "engine.urls (kind is 'local', and it is a key of 'server' and",
        ),
        (["rollout.oversample_rest=cancel"], "rollout.oversample_rest (oversample is 0)"),
        (["config_kwargs={a: 1}"], "config_kwargs (no config_class is named)"),
        (["algorithm.loss.clip_high=0.28"], "algorithm.loss.clip_high (with minibatches=1 and epochs=1 the"),
        (["algorithm.loss.clip_low=0.1", "name=x"], "algorithm.loss.clip_low (with minibatches=1 and epochs=1 the"),
    ],
)
def test_what_does_not_act_is_a_warning(
    overrides: list[str], idle: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """One, that names the key and why; the configuration is as if it had not been given, and is quiet ever after."""
    config = load_config(None, overrides)
    (warning,) = caplog.messages
    assert warning.startswith("these keys do not act: ") and idle in warning
    assert config == load_config(None, [key for key in overrides if key == "name=x"])
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml", ["total_train_steps=1"]) == check_training(
        config.model_copy(update={"total_train_steps": 1})
    )
    assert len(caplog.messages) == 1


_KINDS: dict[str, tuple[str, dict[str, dict[str, object]]]] = {
    "rollout.agent": (
        "mode",
        {
            "inline": {},
            "subproc": {"subproc_max_workers": 8, "workers": 2},
            "online": {"host": "::1", "port": 0, "tls_cert": "a.pem", "tls_key": "b.pem"},
        },
    ),
    "scheduler": (
        "type",
        {
            "local": {},
            "ray": {"ray": {"address": "x"}},
            "slurm": {"head": {"cpus": 2}, "slurm": {"nodes": 2, "env": {"A": "b"}}},
        },
    ),
}


@pytest.mark.parametrize(
    ("where", "own", "other"),
    [(where, *pair) for where, (_, kinds) in _KINDS.items() for pair in itertools.permutations(kinds, 2)],
)
def test_a_file_of_one_kind_loads_as_another(
    where: str, own: str, other: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One word on the command line changes the kind and back; one warning names exactly the keys of the other."""
    tag, kinds = _KINDS[where]
    values: object = {tag: own, **kinds[own]}
    for name in reversed(where.split(".")):
        values = {name: values}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    before, change = load_config(tmp_path / "run.yaml"), [f"{where}.{tag}={other}"]
    assert not caplog.messages
    assert load_config(tmp_path / "run.yaml", change) == load_config(None, change)
    idle = ", ".join(f"{where}.{key}" for key in kinds[own])
    told = f"these keys do not act: {idle} ({tag} is {other!r}, and it is a key of {own!r})"
    assert caplog.messages == ([told] if idle else [])
    caplog.clear()
    assert load_config(tmp_path / "run.yaml", [*change, f"{where}.{tag}={own}"]) == before
    assert not caplog.messages


@pytest.mark.parametrize("name", ["algorithm.normaliser=constant", "algorithm.name=dr_grpo"])
def test_a_constant_length_is_that_of_the_longest_answer(name: str, tmp_path: Path) -> None:
    """Unless it is given; either way the resolved configuration says it."""
    config = load_config(None, [name, "gconfig.max_new_tokens=64"])
    assert config.algorithm.normaliser == ConstantSettings(tokens=64)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml") == config
    own = load_config(None, [name, "gconfig.max_new_tokens=64", "algorithm.normaliser.tokens=8"])
    assert own.algorithm.normaliser == ConstantSettings(tokens=8)


@pytest.mark.parametrize(
    ("where", "bare", "below"),
    [
        ("scheduler", "ray", "ray.address=x"),
        ("rollout.agent", "subproc", "workers=2"),
    ],
)
def test_an_override_goes_below_the_bare_name_of_a_kind(where: str, bare: str, below: str) -> None:
    """Whatever the key is that tells the kinds apart."""
    together = load_config(None, [f"{where}={bare}", f"{where}.{below}"])
    tag = {"scheduler": "type", "rollout.agent": "mode"}[where]
    assert together == load_config(None, [f"{where}.{tag}={bare}", f"{where}.{below}"])


@pytest.mark.parametrize("asked", [["trackers=wandb"], ["trackers.to=[wandb]"], ["trackers=[wandb]"]])
def test_trackers_by_their_bare_names(asked: list[str]) -> None:
    """However they are asked for, and with keys below one of them."""
    assert load_config(None, asked).trackers.to == ("wandb",)
    below = load_config(None, ["trackers=wandb", "trackers.wandb.mode=offline"]).trackers
    assert (below.to, below.wandb.mode) == (("wandb",), "offline")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("trackers.to=[wandbb]", "did you mean 'wandb'"),
        ("trackers.to=[clearml]", "there are mlflow, wandb, tensorboard, trackio, otlp"),
        ("trackers.mlflow.tracking_uri=mlruns.db", "sqlite:///relative.db"),
        ("trackers.otlp.endpoint=localhost:4318", "http://host:4318"),
    ],
)
def test_trackers_that_cannot_be(key: str, words: str) -> None:
    """The error says what can."""
    with pytest.raises(ConfigError, match=words):
        load_config(None, [key])


def test_values_equal_to_the_default_are_never_ineffective(caplog: pytest.LogCaptureFixture) -> None:
    """A key may be written out with its default even where it does not act."""
    load_config(None, ["engine.keep_kv_on_publish=true", "algorithm.loss.clip_low=0.2"])
    assert not caplog.messages


@pytest.mark.parametrize(
    ("keys", "idle"),
    [
        (["algorithm.correction.cap=1.1"], ["correction.cap"]),
        (["algorithm.correction={kind: mask, low: 0.9, level: turn}"], ["correction.level", "correction.low"]),
        (["algorithm.second_moment=0.04", "rollout.max_head_offpolicyness=1"], ["second_moment"]),
        (["algorithm.correction.cap=1.1", "rollout.max_head_offpolicyness=2"], []),
        (["algorithm.correction.cap=1.1", "rollout.stale_tokens=train"], []),
        (["algorithm.correction.cap=1.1", "rollout.replay={share: 0.5, min_mean: 0.5}"], []),
        (["algorithm.correction.cap=0.5"], []),
        (["algorithm.correction={kind: divergence, high: 0.5}"], ["correction.high"]),
        (["algorithm.correction=[{cap: 1.1}, divergence]"], []),
        (["algorithm.correction.cap=1.1", "algorithm.proximal=recompute"], []),
    ],
)
def test_nothing_is_corrected_between_neighbours(keys: list[str], idle: list[str]) -> None:
    """An interpolated proximal policy is the sampler itself for tokens at most one version old: what bounds the weight
    between the two does not act, but where it bounds 1 itself."""
    config = Config(**with_overrides({}, ["algorithm.proximal=interpolate", *keys]))
    assert [each.key for each in config.idle()] == [f"algorithm.{key}" for key in idle]


@pytest.mark.parametrize(
    ("keys", "idle"),
    [
        ("{loss_weight: 1}", "critic.loss_weight (critic.model is 'separate')"),
        ("{model: shared, warmup_steps: 2}", "critic.warmup_steps (critic.model is 'shared')"),
        ("{model: shared, path: other}", "critic.path (critic.model is 'shared')"),
        ("{model: shared, optimizer: {lr: 1}}", "critic.optimizer (critic.model is 'shared')"),
    ],
)
def test_keys_of_the_other_critic_are_named(keys: str, idle: str, caplog: pytest.LogCaptureFixture) -> None:
    """Those of a model of its own where it shares the policy's, and the other way round."""
    load_config(None, ["algorithm.name=ppo", f"critic={keys}"])
    (warning,) = caplog.messages
    assert idle in warning


@pytest.mark.parametrize("where", ["algorithm.minibatches=2", "algorithm.correction=bypass"])
def test_clipping_is_allowed_where_it_acts(where: str) -> None:
    """With several steps on a batch, or a ratio to the sampler itself, the bounds can be set."""
    config = load_config(None, ["algorithm.loss.clip_high=0.28", where])
    assert config.algorithm.loss == ClipSettings(clip_high=0.28)


@pytest.mark.parametrize("key", ["valid_dataset.max_rows=2", "eval_gconfig.temperature=0"])
def test_settings_of_evaluations_that_nobody_asks_for_do_not_act_in_training(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are for `ludus eval` in any case, and for training once an evaluation is asked for."""
    values = ["total_train_steps=1", key]
    check_training(load_config(None, values))
    name = key.partition("=")[0].removesuffix(".temperature")
    assert caplog.messages == [
        f"these keys do not act: {name} (no evaluation is asked for; "
        "eval.before, eval.after or eval.every_steps ask for one)"
    ]
    check_training(load_config(None, [*values, "eval.after=true"]))
    assert len(caplog.messages) == 1


def test_the_resolved_config_reads_back(tmp_path: Path) -> None:
    """What a run keeps as config.yaml is the same configuration when it is loaded again."""
    config = load_config(None, ["model.lora.rank=4", "total_train_steps=3", "gconfig.stop=[END]"])
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config


def test_the_resolved_config_keeps_what_eval_gconfig_leaves_to_gconfig(tmp_path: Path) -> None:
    """Read back and changed, `gconfig` still reaches the keys that eval_gconfig does not give."""
    path = tmp_path / "config.yaml"
    path.write_text(load_config(None, ["gconfig.max_new_tokens=7", "eval_gconfig.temperature=0"]).to_yaml())
    again = load_config(path, ["gconfig.max_new_tokens=9"]).eval_generation
    assert (again.temperature, again.max_new_tokens, again.n_samples) == (0.0, 9, 1)


def test_a_lone_sample_trains_without_a_baseline() -> None:
    """One sample a group is allowed for plain REINFORCE alone."""
    lone = ["gconfig.n_samples=1", "total_train_steps=1"]
    check_training(load_config(None, [*lone, "algorithm.advantage.baseline=none"]))
    with pytest.raises(ConfigError, match=r"algorithm.advantage \(.*baseline='mean'.*\) compares the members"):
        check_training(load_config(None, lone))


def test_evaluations_sample_as_training_does_unless_told_otherwise() -> None:
    """Without eval_gconfig an evaluation plays each row once, with the temperature of training."""
    config = Config(gconfig={"n_samples": 8, "temperature": 0.7})  # type: ignore[arg-type]
    assert (config.eval_generation.n_samples, config.eval_generation.temperature) == (1, 0.7)
    assert load_config(None, ["eval_gconfig.n_samples=4"]).eval_generation.n_samples == 4


def test_eval_gconfig_replaces_the_keys_that_it_gives() -> None:
    """What eval_gconfig does not give is as in gconfig, a default that it gives is given, and a row is played once."""
    base = ["gconfig.n_samples=6", "gconfig.max_new_tokens=7", "gconfig.temperature=0.7", "gconfig.stop=[END]"]
    greedy = load_config(None, [*base, "eval_gconfig.temperature=0"]).eval_generation
    assert (greedy.temperature, greedy.n_samples, greedy.max_new_tokens, greedy.stop) == (0.0, 1, 7, ("END",))
    given = load_config(None, [*base, "eval_gconfig.temperature=1", "eval_gconfig.n_samples=2"]).eval_generation
    assert (given.temperature, given.n_samples, given.max_new_tokens) == (1.0, 2, 7)
