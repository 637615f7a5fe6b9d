"""The whole package: a tiny model trained through the public surface, inside agents that use the real OpenAI SDK."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from safetensors.torch import load_file

import ludus
from ludus.api.play import play
from ludus.config import Config, load_config
from ludus.loop.checkpoint import latest_checkpoint
from ludus.runs.failures import Failure
from ludus.runs.store import RunStore

ROWS = [{"question": f"Guess. It is higher than {bound}."} for bound in range(5)]


class Talker:
    """Two turns; the reward of each is the share of its answer that is vowels, which differs from sample to sample."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": data["question"]}]
        rewards = {}
        for _ in range(2):
            completion = await client.chat.completions.create(model="default", messages=messages, max_tokens=6)
            text = completion.choices[0].message.content or ""
            rewards[completion.id] = sum(letter in "aeiou" for letter in text) / 6
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "higher"}]
        return ludus.Result(rewards, metrics={"success": float(sum(rewards.values()) > 0)})


class Steps(ludus.Observer):
    """Remembers what it was shown."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.evals: list[int] = []

    def on_step(self, step: int, metrics: Any) -> None:
        self.steps.append((step, dict(metrics)))

    def on_eval(self, step: int, metrics: Any) -> None:
        self.evals.append(step)


def make_config(model: Path, root: Path, /, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "tiny",
        "run_root": str(root),
        "seed": 3,
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 3},
        "train_dataset": {"batch_size": 2},
        "trainer": {"optimizer": {"lr": 1e-3}},
        "total_train_steps": 3,
    }
    return Config(**{**values, **changes})


def weights_of(run: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "model" / "model.safetensors").items()}


def ledger_of(metrics: dict[str, float]) -> tuple[float, float]:
    masked = sum(value for name, value in metrics.items() if name.startswith("ledger/masked_"))
    return metrics["ledger/sampled"], metrics["ledger/trained"] + masked


@pytest.fixture(scope="module")
def trained(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Steps, ludus.RunSummary]:
    """A run of three steps with evaluations before and after."""
    root = tmp_path_factory.mktemp("trained")
    watcher = Steps()
    config = make_config(tiny_model_folder, root, eval={"before": True, "after": True})
    summary = ludus.Trainer(config, ROWS, ROWS[:2]).train(Talker, observer=watcher)
    return root / "tiny", watcher, summary


def test_three_steps_train_the_weights(trained: tuple[Path, Steps, ludus.RunSummary], tiny_model_folder: Path) -> None:
    """Three steps change the weights, and the saved model has the names of the one it began with."""
    run, _, summary = trained
    before = load_file(tiny_model_folder / "model.safetensors")
    after = load_file(run / "model" / "model.safetensors")
    assert summary.steps == 3 and summary.stopped_by == "total_train_steps"
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before)


def test_the_ledger_balances_every_step(trained: tuple[Path, Steps, ludus.RunSummary]) -> None:
    """Every step, and the run as a whole, accounts for every sampled token, and for those in the run store."""
    run, watcher, summary = trained
    assert [step for step, _ in watcher.steps] == [1, 2, 3]
    for _, metrics in watcher.steps:
        sampled, accounted = ledger_of(metrics)
        assert sampled == accounted > 0
        assert metrics["train/logprob_gap_max"] < 1e-4
        assert metrics["staleness/max_versions"] == 0
    with RunStore.open(run) as store:
        stored = sum(episode.session.num_sampled_tokens for episode in store.episodes())
        turns = {turn.id for episode in store.episodes(is_eval=False) for turn in episode.session.turns}
        assert store.credit().keys() == turns
    assert summary.ledger.sampled == stored
    assert summary.ledger.unbalanced == 0


def test_ppo_trains_a_critic_beside_the_policy(tiny_model_folder: Path, tmp_path: Path) -> None:
    """By its name alone: the ledger balances, the critic moves alone first, and a resumed run ends in equal weights."""
    ppo: dict[str, Any] = {
        "algorithm": {"name": "ppo", "advantage": {"lam": 0.9}, "minibatches": 2},
        "critic": {"warmup_steps": 1, "optimizer": {"lr": 1e-3}},
    }
    watcher, root = Steps(), tmp_path / "whole"
    summary = ludus.Trainer(make_config(tiny_model_folder, root, **ppo), ROWS).train(Talker, observer=watcher)
    assert summary.steps == 3 and summary.ledger.unbalanced == 0
    first, *later = (metrics for _, metrics in watcher.steps)
    assert first["train/optimizer_steps"] == 0 and first["critic/value"] == 0.0
    for metrics in (first, *later):
        sampled, accounted = ledger_of(metrics)
        assert sampled == accounted == metrics["ledger/trained"]
        assert metrics["critic/loss"] > 0 and metrics["critic/grad_norm"] > 0 and metrics["time/measure_s"] > 0
        assert metrics["critic/explained_variance"] <= 1 and 0 <= metrics["critic/clip_fraction"] <= 1
    assert [metrics["train/optimizer_steps"] for metrics in later] == [2, 2] and later[-1]["critic/value"] != 0
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, total_train_steps=2, **ppo), ROWS).train(Talker)
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, **ppo), ROWS).train(Talker, resume=True)
    assert weights_of(tmp_path / "tiny") == weights_of(root / "tiny")


def test_a_critic_may_share_the_policys_trunk(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Where the first answer pays and the second does not, its head learns to tell them apart; a resumed run ends in
    equal weights, and the model that is saved has no head."""

    class Told(Talker):
        async def run(self, data: dict[str, Any], **how: Any) -> Any:
            return dict(zip((await super().run(data, **how)).reward, (1.0, 0.0), strict=True))

    ppo: dict[str, Any] = {
        "algorithm": {"name": "ppo", "minibatches": 2},
        "critic": {"model": "shared", "loss_weight": 1.0, "clip_range": None},
        "trainer": {"optimizer": {"lr": 3e-3}},
        "total_train_steps": 10,
    }
    watcher, root = Steps(), tmp_path / "whole"
    summary = ludus.Trainer(make_config(tiny_model_folder, root, **ppo), ROWS).train(Told, observer=watcher)
    assert summary.ledger.unbalanced == 0
    explained = [metrics["critic/explained_variance"] for _, metrics in watcher.steps]
    assert explained[0] == 0.0 and min(explained[-3:]) > 0.1, explained
    assert not any("score" in name for name in load_file(root / "tiny" / "model" / "model.safetensors"))
    for steps, resume in ((4, False), (10, True)):
        part = make_config(tiny_model_folder, tmp_path, **{**ppo, "total_train_steps": steps})
        ludus.Trainer(part, ROWS).train(Told, resume=resume)
    assert weights_of(tmp_path / "tiny") == weights_of(root / "tiny")


def test_good_groups_are_trained_on_again(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Their tokens weigh what they are likely now against what was recorded, which is another thing after a step; the
    ledger and the credit know them once, and a resumed run ends in equal weights."""
    replay: dict[str, Any] = {
        "rollout": {"replay": {"share": 0.5}},
        "algorithm": {"minibatches": 2},
        "trainer": {"optimizer": {"lr": 1e-4}},
    }
    watcher, root = Steps(), tmp_path / "whole"
    summary = ludus.Trainer(make_config(tiny_model_folder, root, **replay), ROWS).train(Talker, observer=watcher)
    first, *later = (metrics for _, metrics in watcher.steps)
    assert "replay/groups" not in first and summary.ledger.unbalanced == 0
    for metrics in later:
        sampled, accounted = ledger_of(metrics)
        assert sampled == accounted and metrics["rollout/groups"] == metrics["replay/groups"] == 1
        assert 0 < metrics["replay/ess"] < 1 and metrics["replay/weight"] == pytest.approx(1.0, abs=0.2)
        assert metrics["batch/trained_tokens"] == metrics["ledger/trained"] + metrics["ledger/replayed"]
    assert summary.ledger.replayed == sum(metrics["ledger/replayed"] for metrics in later) > 0
    with RunStore.open(root / "tiny") as store:
        assert sum(episode.session.num_sampled_tokens for episode in store.episodes()) == summary.ledger.sampled
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, total_train_steps=2, **replay), ROWS).train(Talker)
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, **replay), ROWS).train(Talker, resume=True)
    assert weights_of(tmp_path / "tiny") == weights_of(root / "tiny")


def test_experts_are_mixed_in(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Of rows that have a conversation: it joins the group, also where no member ever gets a reward; what the expert
    said becomes more likely, the ledger balances, and a resumed run ends in equal weights."""

    class Failing(Talker):
        async def run(self, data: dict[str, Any], **how: Any) -> Any:
            return dict.fromkeys((await super().run(data, **how)).reward, 0.0)

    said = {"role": "assistant", "content": "the answer is 42"}
    rows = [{**row, "expert": [{"role": "user", "content": row["question"]}, said]} for row in ROWS[:4]]
    config: dict[str, Any] = {
        "train_dataset": {"batch_size": 2, "demonstrations": "expert"},
        "algorithm": {"demonstrations": {"gamma": 0.003}},
        "trainer": {"optimizer": {"lr": 1e-2}},
        "total_train_steps": 6,
    }
    watcher, root = Steps(), tmp_path / "whole"
    made = make_config(tiny_model_folder, root, **config)
    summary = ludus.Trainer(made, [*rows, ROWS[4]]).train(Failing, observer=watcher)
    seen = [metrics["demonstrations/probability"] for _, metrics in watcher.steps]
    assert seen[-1] > 20 * seen[0]
    assert summary.ledger.unbalanced == 0 and summary.ledger.demonstrated > 0
    for _, metrics in watcher.steps:
        sampled, accounted = ledger_of(metrics)
        assert sampled == accounted and metrics["rollout/episodes"] == 6
    with RunStore.open(root / "tiny") as store:
        assert sum(episode.session.num_sampled_tokens for episode in store.episodes()) == summary.ledger.sampled
    for steps, resume in ((3, False), (6, True)):
        part = make_config(tiny_model_folder, tmp_path, **{**config, "total_train_steps": steps})
        ludus.Trainer(part, [*rows, ROWS[4]]).train(Failing, resume=resume)
    assert weights_of(tmp_path / "tiny") == weights_of(root / "tiny")
    with pytest.raises(ludus.UserError, match="'expert': no row has any; the columns are 'question'"):
        ludus.Trainer(made.model_copy(update={"name": "none"}), ROWS).train(Failing)


def test_evaluations_are_in_the_summary(trained: tuple[Path, Steps, ludus.RunSummary]) -> None:
    """The summary on disk tells success before and after, and how long and how large the run was."""
    run, watcher, _ = trained
    written = json.loads((run / "summary.json").read_text())
    assert watcher.evals == [0, 3]
    assert {"success_before", "success_after", "train_seconds", "steps", "peak_rss_mb", "run"} <= written.keys()
    assert 0.0 <= written["success_before"] <= 1.0 and 0.0 <= written["success_after"] <= 1.0


def test_equal_seeds_give_equal_weights_and_a_resumed_run_too(
    trained: tuple[Path, Steps, ludus.RunSummary], tiny_model_folder: Path, tmp_path: Path
) -> None:
    """In the synchronous schedule a run that stopped after step 2 and was resumed ends in the same weights."""
    first = ludus.Trainer(make_config(tiny_model_folder, tmp_path, total_train_steps=2), ROWS).train(Talker)
    assert first.steps == 2
    watcher = Steps()
    summary = ludus.Trainer(make_config(tiny_model_folder, tmp_path), ROWS).train(Talker, resume=True, observer=watcher)
    assert summary.steps == 3 and [step for step, _ in watcher.steps] == [3]
    assert weights_of(tmp_path / "tiny") == weights_of(trained[0])


def test_remax_plays_a_greedy_member_that_is_not_trained(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Each group has one member more, which answers at temperature 0 though its agent asks for 1, and is accounted for
    by name."""
    watcher = Steps()
    config = make_config(tiny_model_folder, tmp_path, algorithm={"name": "remax"}, gconfig={"n_samples": 1})
    summary = ludus.Trainer(config, ROWS).train(Talker, observer=watcher)
    with RunStore.open(tmp_path / "tiny") as store:
        greedy = [episode for episode in store.episodes() if episode.is_greedy]
        assert len([*store.episodes()]) == 12 and len(greedy) == 6
        assert {episode.id.rpartition("-")[2] for episode in greedy} == {"m01"}
    masked = summary.ledger.masked
    num_greedy = sum(episode.session.num_sampled_tokens for episode in greedy)
    assert masked.get("greedy", 0) + masked.get("zero_advantage", 0) >= num_greedy > 0 == summary.ledger.unbalanced
    assert all("rollout/greedy_reward" in metrics for _, metrics in watcher.steps)


def test_what_the_divergence_costs_follows_its_target(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Nothing at first, where policy and reference are one; then more than a small target, so that each nat costs 1.2
    times as much after the first batch that moved; a resumed run goes on with it, to equal weights."""
    lost = {"coef": 0.5, "estimator": "k3", "target": 1e-9, "horizon": 6}  # episodes of a batch
    algorithm = {"reward_kl": lost, "advantage": {"baseline": "none", "scale": "none"}}
    optimizer = {"optimizer": {"lr": 1e-2}}
    alone, parted, watcher = tmp_path / "alone", tmp_path / "parted", Steps()
    ludus.Trainer(make_config(tiny_model_folder, alone, algorithm=algorithm, trainer=optimizer), ROWS).train(
        Talker, observer=watcher
    )
    for steps in (2, 3):
        keys = {"algorithm": algorithm, "trainer": optimizer, "total_train_steps": steps}
        ludus.Trainer(make_config(tiny_model_folder, parted, **keys), ROWS).train(Talker, resume=steps == 3)
    assert weights_of(parted / "tiny") == weights_of(alone / "tiny")
    coefs = [metrics["reward_kl/coef"] for _, metrics in watcher.steps]
    nats = [metrics["reward_kl/token_nats"] for _, metrics in watcher.steps]
    assert nats[0] == pytest.approx(0.0, abs=1e-6) and nats[1] > 0 and nats[1] != nats[2]
    for before, after, seen in zip(coefs, coefs[1:], nats, strict=False):
        assert after == pytest.approx(before * (1 + min(max(seen / 1e-9 - 1, -0.2), 0.2)))
    assert coefs[0] == 0.5 and watcher.steps[2][1]["reward_kl/penalty"] > 0


def test_what_an_algorithm_remembers_outlives_a_stop(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Baselines of roles and the weight of the entropy go on where they stood, to equal weights."""
    entropy = {"target": 100.0, "delta": 0.5, "max": 10.0}
    algorithm = {"name": "rae", "entropy": entropy, "minibatches": 2}
    alone, parted = tmp_path / "alone", tmp_path / "parted"
    ludus.Trainer(make_config(tiny_model_folder, alone, algorithm=algorithm), ROWS).train(Talker)
    for steps in (2, 3):
        config = make_config(tiny_model_folder, parted, algorithm=algorithm, total_train_steps=steps)
        ludus.Trainer(config, ROWS).train(Talker, resume=steps == 3)
    memories = [latest_checkpoint(root / "tiny" / "checkpoints") for root in (alone, parted)]
    assert memories[0] and memories[1] and memories[0].progress.memory == memories[1].progress.memory
    assert memories[0].progress.memory["entropy/coef"] == 1.5 and "rae//" in memories[0].progress.memory
    assert weights_of(parted / "tiny") == weights_of(alone / "tiny")


def test_without_an_end_there_is_one_pass(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Over the rows; a learning rate that decays reaches 0 with it."""
    watcher = Steps()
    config = make_config(
        tiny_model_folder, tmp_path, total_train_steps=None, trainer={"optimizer": {"lr": 0.1, "decay": "linear"}}
    )
    summary = ludus.Trainer(config, ROWS).train(Talker, observer=watcher)
    num_steps = math.ceil(len(ROWS) / config.train_dataset.batch_size)
    assert (summary.steps, summary.stopped_by) == (num_steps, "total_train_epochs")
    rates = [metrics["train/lr"] for _, metrics in watcher.steps]
    assert rates == pytest.approx([0.1 * (1 - step / num_steps) for step in range(num_steps)])


def test_the_asynchronous_schedule_masks_nothing_within_its_bound(tiny_model_folder: Path, tmp_path: Path) -> None:
    """With max_head_offpolicyness=1 tokens are at most one version old, and none is masked as stale."""
    watcher = Steps()
    config = make_config(
        tiny_model_folder,
        tmp_path,
        rollout={"max_head_offpolicyness": 1, "max_concurrent_rollouts": 6},
        total_train_steps=4,
    )
    summary = ludus.Trainer(config, ROWS).train(Talker, observer=watcher)
    for _, metrics in watcher.steps:
        assert metrics["staleness/max_versions"] <= 1
        assert ledger_of(metrics)[0] == ledger_of(metrics)[1]
    assert "stale" not in summary.ledger.masked


def test_it_works_inside_a_running_event_loop(
    tiny_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a notebook, where an event loop runs already, train() works as in a script. Without a terminal it says
    nothing; a callback is called with each step."""
    seen: list[tuple[int, float]] = []

    async def cell() -> ludus.RunSummary:
        trainer = ludus.Trainer(make_config(tiny_model_folder, tmp_path, total_train_steps=2), ROWS)
        return trainer.train(Talker, callback=lambda step, metrics: seen.append((step, metrics["rollout/reward"])))

    assert asyncio.run(cell()).steps == 2
    assert [step for step, _ in seen] == [1, 2]
    assert "step 1/" not in "".join(capfd.readouterr())


def test_progress_is_shown_beside_whoever_watches(
    tiny_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`progress=True` shows it without a terminal too, on stderr; observer and callback are told all the same."""
    observer, callback = Steps(), Steps()
    trainer = ludus.Trainer(make_config(tiny_model_folder, tmp_path, total_train_steps=1), ROWS)
    trainer.train(Talker, observer=observer, callback=callback, progress=True)
    assert observer.steps == callback.steps and len(observer.steps) == 1
    out, error = capfd.readouterr()
    assert "step 1/1" in error and "done: 1 steps" in error and "step 1" not in out


def test_a_callback_that_raises_stops_the_run(tiny_model_folder: Path, tmp_path: Path) -> None:
    """What it raises is what `train` raises; nothing of it is swallowed."""
    trainer = ludus.Trainer(make_config(tiny_model_folder, tmp_path), ROWS)
    with pytest.raises(KeyError, match="no/such"):
        trainer.train(Talker, callback=lambda _, metrics: metrics["no/such"])


def test_a_summary_is_a_table_in_notebooks(trained: tuple[Path, Steps, ludus.RunSummary]) -> None:
    """What one asks of a run that has ended; texts of the run's are no HTML."""
    _, _, summary = trained
    html = replace(summary, failures=[Failure("failed", "<b>ValueError</b>", 3, "e-1", "")])._repr_html_()
    assert "3 steps, ended by total_train_steps" in html and f"{summary.ledger.sampled:,} sampled = " in html
    assert f"{summary.reward_before:.3f} → {summary.reward_after:.3f}" in html and "3 episodes failed" in html
    assert "&lt;b&gt;ValueError" in html


def test_an_agent_that_always_raises_stops_the_run_with_its_traceback(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The first traceback of an agent that never succeeds is in the error; what was played is kept."""

    async def broken(data: dict[str, Any], **kwargs: Any) -> float:
        return float(data["anser"])

    rows = [{"question": "2+2", "answer": 4}]
    with pytest.raises(ludus.UserError, match="no column 'anser'; did you mean 'answer'"):
        ludus.Trainer(make_config(tiny_model_folder, tmp_path), rows).train(broken)
    with RunStore.open(tmp_path / "tiny") as store:
        kinds = Counter(episode.outcome.kind for episode in store.episodes())
    assert kinds["failed"] >= 16
    assert list((tmp_path / "tiny" / "checkpoints").iterdir())


def test_evaluate_plays_held_out_rows(tiny_model_folder: Path, tmp_path: Path) -> None:
    """evaluate() plays each held-out row once and changes no file."""
    evaluation = ludus.Trainer(make_config(tiny_model_folder, tmp_path), valid_dataset=ROWS[:2]).evaluate(Talker)
    assert evaluation.metrics["eval/episodes"] == 2
    assert not list(tmp_path.iterdir())


async def penalised(data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float:
    """One turn whose logits the request changes; the reward differs from sample to sample."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    completion = await client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": data["question"]}],
        max_tokens=8,
        frequency_penalty=0.5,
        logit_bias={"20": 2.0},
    )
    return sum(letter in "aeiou" for letter in completion.choices[0].message.content or "") / 8


def test_what_was_cut_and_penalised_is_trained(tiny_model_folder: Path, tmp_path: Path) -> None:
    """With the run's own top-p, and penalties and biases that agents may ask for, every token is trained as sampled."""
    watcher = Steps()
    gconfig, rollout = {"n_samples": 4, "top_p": 0.9, "temperature": 1.2}, {"pinned": ["top_p", "top_k"]}
    config = make_config(tiny_model_folder, tmp_path, gconfig=gconfig, rollout=rollout, total_train_steps=2)
    ludus.Trainer(config, ROWS).train(penalised, observer=watcher)
    for _, metrics in watcher.steps:
        assert metrics["ledger/trained"] > 0 and "ledger/masked_kept_set" not in metrics
        assert metrics["train/logprob_gap_max"] < 1e-4
    with RunStore.open(tmp_path / "tiny") as store:
        turns = [turn for episode in store.episodes() for turn in episode.session.turns]
    assert {(turn.sampling.top_p, turn.sampling.frequency_penalty) for turn in turns} == {(0.9, 0.5)}
    assert all(turn.sampling.logit_bias == ((20, 2.0),) and None not in turn.sampled.kept_ids for turn in turns)


def test_play_returns_episodes_token_by_token(tiny_model_folder: Path, tmp_path: Path) -> None:
    """play() returns the episodes of every row and sample in order, with tokens, logprobs and rewards."""
    episodes = play(Talker, ROWS[:2], config=make_config(tiny_model_folder, tmp_path))
    assert [episode.task_id for episode in episodes] == ["row0"] * 3 + ["row1"] * 3
    assert all(len(episode.session.turns) == 2 and len(episode.rewards) == 2 for episode in episodes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gconfig": {"n_samples": 3, "temperature": 0.0}}, r"gconfig.temperature=0 samples greedily"),
        ({"gconfig": {"n_samples": 1}}, "compares the members of a group"),
        ({"eval": {"every_steps": 2}}, "eval.every_steps cannot act without held-out rows"),
    ],
)
def test_what_cannot_act_is_refused_before_anything_is_loaded(
    tiny_model_folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Settings that cannot do what they say are refused, with the way out, and no run folder is made."""
    with pytest.raises(ludus.ConfigError, match=message):
        ludus.Trainer(make_config(tiny_model_folder, tmp_path, **changes), ROWS).train(Talker)
    assert not list(tmp_path.iterdir())


def test_resuming_with_another_stream_is_refused(
    trained: tuple[Path, Steps, ludus.RunSummary], tiny_model_folder: Path
) -> None:
    """A resumed run must keep the keys that order its data."""
    config = make_config(tiny_model_folder, trained[0].parent, train_dataset={"batch_size": 4})
    with pytest.raises(ludus.ConfigError, match=r"train_dataset.batch_size=4 cannot be resumed with.*begun with 2"):
        ludus.Trainer(config, ROWS).train(Talker, resume=True)


def test_resuming_with_edited_rows_is_refused(
    trained: tuple[Path, Steps, ludus.RunSummary], tiny_model_folder: Path
) -> None:
    """Where the data was edited after the run began, the refusal says what is different and what helps."""
    config = make_config(tiny_model_folder, trained[0].parent)
    with pytest.raises(ludus.UserError, match=f"there were {len(ROWS)} rows, and there are 1 now.*--new"):
        ludus.Trainer(config, ROWS[:1]).train(Talker, resume=True)
    edited = [*ROWS[:-1], {**ROWS[-1], "question": "edited"}]
    with pytest.raises(ludus.UserError, match=f"of the rows {len(ROWS) - 1} to {len(ROWS) - 1} .*Restore them"):
        ludus.Trainer(config, edited).train(Talker, resume=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"path": "/nowhere/at/all"}},
        {"model": {"dtype": "float32", "lora": {"target_modules": ["no_such_layer"]}}},
        {"model": {"dtype": "float32", "context_length": 10**6}},
        {"workflow": "no_such_module:Agent"},
    ],
)
def test_a_run_that_cannot_begin_leaves_nothing_in_the_way_of_the_next(
    tiny_model_folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A missing model, a bad adapter, too long a context, a bad agent: the run's name is still free."""
    if "model" in changes:
        changes = {"model": {"path": str(tiny_model_folder), **changes["model"]}}
    trainer = ludus.Trainer(make_config(tiny_model_folder, tmp_path, **changes), ROWS)
    with pytest.raises(ludus.UserError):
        trainer.train(None if "workflow" in changes else Talker)
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_keeps_the_configuration_it_goes_on_with(tiny_model_folder: Path, tmp_path: Path) -> None:
    """config.yaml says what the resumed run was told, and what it was until then is beside it."""
    ludus.Trainer(make_config(tiny_model_folder, tmp_path, total_train_steps=1), ROWS).train(Talker)
    summary = ludus.Trainer(make_config(tiny_model_folder, tmp_path, total_train_steps=2), ROWS).train(
        Talker, resume=True
    )
    folder = tmp_path / "tiny"
    assert load_config(folder / "config.yaml").total_train_steps == 2
    assert load_config(folder / "config.until-000001.yaml").total_train_steps == 1
    with RunStore.open(folder) as store:
        assert summary.ledger.sampled == sum(episode.session.num_sampled_tokens for episode in store.episodes())


def test_a_loss_and_an_advantage_of_ones_own_train(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Both lie in a file of the user's; the run's configuration names them, and a file that is not there ends it."""
    (tmp_path / "mine.py").write_text(
        "def loss(inputs, *, slope):\n"
        "    return -slope * inputs.advantages_N * inputs.logprobs_N, {'mine': inputs.logprobs_N.detach().mean()}\n"
        "def advantage(groups):\n"
        "    return [each.returns for each in groups]\n"
    )
    own = {"kind": "own", "path": f"{tmp_path}/mine.py:loss", "kwargs": {"slope": 2.0}}
    algorithm = {"loss": own, "advantage": f"{tmp_path}/mine.py:advantage", "correction": "bypass"}
    watcher = Steps()
    config = make_config(tiny_model_folder, tmp_path, algorithm=algorithm, total_train_steps=1)
    ludus.Trainer(config, ROWS).train(Talker, observer=watcher)
    ((_, metrics),) = watcher.steps
    assert metrics["train/mine"] < 0 and metrics["train/grad_norm"] > 0
    assert load_config(tmp_path / "tiny" / "config.yaml") == config
    missing = make_config(tiny_model_folder, tmp_path, name="other", algorithm={"loss": "no_such.py:loss"})
    with pytest.raises(ludus.UserError, match=r"no file 'no_such\.py'"):
        ludus.Trainer(missing, ROWS).train(Talker)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "gspo", "minibatches": 2},
        {"name": "gigpo", "loss": "kl_cov", "top_entropy": 0.5, "entropy": {"coef": 0.01}},
        {"advantage": {"kind": "gdpo", "rewards": {"success": 1.0, "length": -1.0}}, "kl": {"beta": 0.1}},
        {"name": "reinforce_plus_plus", "loss": "sapo", "correction": {"kind": "mask", "level": "episode"}},
    ],
)
def test_the_menu_trains(algorithm: dict[str, Any], tiny_model_folder: Path, tmp_path: Path) -> None:
    """What takes turns, episodes or groups together works in a run; its ledger balances and its weights move."""

    class Measured(Talker):
        async def run(self, data: dict[str, Any], **how: Any) -> Any:
            result = await super().run(data, **how)
            return ludus.Result(result.reward, metrics={**result.metrics, "length": len(result.reward) / 2})

    watcher = Steps()
    config = make_config(tiny_model_folder, tmp_path, algorithm=algorithm, total_train_steps=2)
    ludus.Trainer(config, ROWS).train(Measured, observer=watcher)
    for _, metrics in watcher.steps:
        sampled, accounted = ledger_of(metrics)
        assert sampled == accounted > 0
    assert max(metrics.get("train/grad_norm", 0.0) for _, metrics in watcher.steps) > 0
