"""Episodes made up from a seed, with everything a record can hold; a run that looks like a real one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.runs.store import RunStore
from ludus.types import Episode, Message, Node, Outcome, Sampled, Sampling, SessionRecord, ToolCall, ToolSpec, Turn

WORDS = ("", "11", " is", " my", " guess", "\n", "The", " number", " higher", " 7", " then", "<|im_end|>")
END = len(WORDS) - 1
MakeEpisode = Callable[..., Episode]
MakeRun = Callable[..., RunStore]


def decode(ids: object) -> str:
    """Text of made-up ids: a word each, so that a page with them reads like one of a real model."""
    return "".join(WORDS[token % len(WORDS)] for token in ids)  # type: ignore[attr-defined]


def sample_tokens(rng: random.Random, num: int, *, version: int = 0, surety: float = 0.5) -> Sampled:
    """An answer whose probabilities grow with `surety`."""
    ids = (*(rng.randrange(1, END) for _ in range(num)), END)
    logprobs = tuple(-rng.expovariate(0.4 + 6 * surety) for _ in ids)
    return Sampled(ids, logprobs, (version,) * len(ids), "stop", seed=rng.getrandbits(60))


def episode_of(
    seed: int, *, num_turns: int = 3, reward: float | None = 1.0, kind: str = "ok", **kwargs: object
) -> Episode:
    """A guessing game in `num_turns` turns: one path of nodes, the reward on the last turn."""
    rng = random.Random(seed)
    version, surety = int(kwargs.pop("version", 0)), float(kwargs.pop("surety", 0.5))  # type: ignore[call-overload]
    nodes: list[Node] = []
    turns: list[Turn] = []
    messages = [Message("system", "Guess a number from 1 to 20."), Message("user", "Guess. It is higher than 7.")]
    for idx in range(num_turns):
        context = tuple(rng.randrange(1, END) for _ in range(24 if idx == 0 else 6))
        nodes.append(Node(len(nodes) - 1 if nodes else None, context))
        sampled = sample_tokens(rng, rng.randrange(2, 14), version=version, surety=surety)
        turn_id = f"chatcmpl-{seed:08x}{idx:016x}"
        nodes.append(Node(len(nodes) - 1, sampled.token_ids, turn_id))
        before = turns[-1].id if turns else None
        reply = Message("assistant", decode(sampled.token_ids[:-1]))
        turns.append(
            Turn(turn_id, len(nodes) - 1, before, before, None, tuple(messages), reply, sampled, Sampling(seed=idx))
        )
        messages += [reply, Message("user", rng.choice(["higher", "lower"]))]
    return Episode(
        id=f"ep-{seed}",
        task_id=f"task-{seed // 8}",
        group_id=f"group-{seed // 8}",
        session=SessionRecord(f"session-{seed}", tuple(nodes), tuple(turns)),
        rewards={} if reward is None or not turns else {turns[-1].id: reward},
        reward=reward,
        outcome=Outcome(kind, "" if kind == "ok" else "the agent raised ValueError"),  # type: ignore[arg-type]
        metrics={"success": float((reward or 0) > 0.5)},
        finished_at=1.7e9 + seed,
        **kwargs,  # type: ignore[arg-type]
    )


def rich_episode() -> Episode:
    """An episode that uses every field: a fork, tools, reasoning, two agents, odd floats, odd text."""
    call = ToolCall("call_1", "add", '{"a": 1,  "b": 2}')
    tool = ToolSpec("add", "adds", {"type": "object", "properties": {"a": {"type": "integer"}}}, strict=True)
    asked = (Message("user", "1+2? \ud83d \U0001f600"), Message("assistant", None, tool_calls=(call,), reasoning=""))
    sampled = Sampled(
        token_ids=(5, 6, 7),
        logprobs=(-0.1, -1e-300, -math.pi),
        versions=(0, 0, 2**40),
        stop_reason="length",
        seed=2**63 + 11,
        stop_string="\n",
        top_logprobs=(((5, -0.1), (9, -2.0)), (), ((7, -math.pi),)),
        num_cached_tokens=17,
        kept_ids=((5, 9), None, (6, 7, 8)),
        prefill_s=0.25,
    )
    sampling = Sampling(
        temperature=0.7,
        top_p=0.9,
        stop=("\n", "x"),
        stop_token_ids=(2,),
        max_new_tokens=3,
        logit_bias=((5, -1.5), (9, 100.0)),
        grammar='start: "x"*',
    )
    reply = Message("assistant", "hm")
    first = Turn("t0", 1, None, None, None, asked, reply, sampled, sampling, "", 1.25, 2.5, (tool,), ("<tool_call>{",))
    answered = (*asked, Message("tool", "3", tool_call_id="call_1", name="add"))
    empty = Sampled((), (), (), "abort")
    second = Turn("t1", 3, None, "t0", "edit", answered, Message("assistant", ""), empty, Sampling(), "helper")
    nodes = (Node(None, (1, 2)), Node(0, (5, 6, 7), "t0"), Node(None, (1, 2, 3)), Node(2, (), "t1"))
    return Episode(
        id="ep-rich",
        task_id="τ",
        group_id="g",
        session=SessionRecord("s", nodes, (first, second)),
        rewards={"t0": -0.30000000000000004},
        reward=0.1,
        outcome=Outcome("truncated", "turn limit"),
        metrics={"x": 1e308},
        metadata={"nested": {"list": [1, None, True, "ä"]}},
        started_at=1.1,
        finished_at=2.2,
        is_eval=True,
    )


def fill_run(store: RunStore, *, num_steps: int = 40, per_step: int = 8, seed: int = 0) -> RunStore:
    """A run that learns: rewards rise, entropy falls, tokens get masked for several reasons."""
    rng = random.Random(seed)
    number = 0
    for step in range(num_steps):
        skill = 0.04 + 0.84 / (1 + math.exp(-(step - num_steps * 0.4) / (num_steps * 0.09)))
        found = 0
        for _ in range(per_step):
            is_found = rng.random() < skill
            found += is_found
            reward = 1.0 - 0.1 * rng.randrange(5) if is_found else 0.1 * rng.random()
            kind = "failed" if rng.random() < 0.02 else "ok"
            episode = episode_of(
                number,
                num_turns=rng.randrange(1, 6),
                reward=reward if kind == "ok" else None,
                kind=kind,
                version=step,
                surety=skill,
            )
            store.add_episode(episode, step=step)
            advantage = reward - 0.5
            store.add_credit(step, {turn.id: advantage if kind == "ok" else "failed" for turn in episode.session.turns})
            number += 1
        store.add_metrics(step, _metrics(rng, step, skill, found / per_step))
        if step % 10 == 0 or step == num_steps - 1:
            store.add_metrics(step, {"eval/success": min(1.0, max(0.0, skill + rng.gauss(0, 0.02)))})
    return store


def _metrics(rng: random.Random, step: int, skill: float, success: float) -> dict[str, float]:
    sampled = rng.randrange(2600, 3400)
    failed, flat = rng.randrange(0, 60), int(sampled * (0.6 - 0.5 * skill) * rng.random())
    return {
        "rollout/reward": 0.05 + 0.9 * success,
        "rollout/success": success,
        "train/loss": rng.gauss(0, 0.02),
        "train/kl": abs(rng.gauss(0.002, 0.001)) * (1 + step / 20),
        "train/entropy": 1.6 - 1.1 * skill + rng.gauss(0, 0.03),
        "train/grad_norm": 0.8 + rng.expovariate(2.0),
        "train/clip_fraction": abs(rng.gauss(0.01, 0.005)),
        "train/logprob_gap_mean": abs(rng.gauss(0.006, 0.0008)),
        "train/logprob_gap_max": 0.05 + rng.expovariate(30),
        "time/rollout_s": 5.2 + rng.gauss(0, 0.3),
        "time/train_s": 3.1 + rng.gauss(0, 0.2),
        "time/publish_s": 0.15,
        "ledger/sampled": sampled,
        "ledger/trained": sampled - failed - flat,
        "ledger/masked_failed": failed,
        "ledger/masked_zero_advantage": flat,
        "memory/peak_rss_mb": 2210.0 + step,
        "rollout/tokens_per_s": 610 + rng.gauss(0, 20),
    }


@pytest.fixture(scope="session")
def make_episode() -> MakeEpisode:
    return episode_of


@pytest.fixture
def full_episode() -> Episode:
    return rich_episode()


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A filled run below the test's own folder."""

    def build(name: str = "made-up", **kwargs: int) -> RunStore:
        return fill_run(RunStore.create(tmp_path, name, "name: made-up\nmodel: {}\nseed: 0\n"), **kwargs)

    return build
