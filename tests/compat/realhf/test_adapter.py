"""One episode of a queue agent, from the row to the record: what it asks, gets, returns, and does wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from ludus.agents.environments.base import EnvironmentService
from ludus.agents.kinds import resolve_workflow
from ludus.compat.config import Config
from ludus.compat.realhf.abstraction import AgentAbstraction, EnvServiceAbstraction
from ludus.compat.realhf.agent import Agent
from ludus.compat.realhf.generation import BundledGenerationOutputs, GenerationHyperparameters
from ludus.compat.realhf.trajectory import TrajectoryBuilder
from ludus.errors import UserError


class Judge(EnvironmentService):
    """Any answer to the first query is right."""

    async def reset(self, seed=None, options=None):
        return None, {}

    async def step(self, action):
        qid, answers = action
        return None, [float(qid == "q1") for _ in answers], True, False, {}


class TwoTurns(Agent):
    """Asks, gets an answer, asks again with what it got and one token more."""

    def __init__(self, n=1, more=65):
        self.n, self.more = n, more
        self.bundles = []

    async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
        assert prompt.bs == 1
        await env.reset()
        token_ids = prompt.data["packed_prompts"].cpu().numpy().tolist()
        trajectory, rewards = TrajectoryBuilder(prompt), []
        for turn in range(2):
            await obs_queue.put((prompt.ids[0], token_ids, GenerationHyperparameters(n=self.n)))
            act: BundledGenerationOutputs = await act_queue.get()
            self.bundles.append(act)
            _, success, *_ = await env.step((prompt.ids[0], [str(ids) for ids in act.output_ids]))
            trajectory.add(act)
            rewards += [value - 0.5 * turn for value in success]
            token_ids = list(act.seqs[0])
            token_ids.extend([self.more])
        return [trajectory.build(rewards, {"success": [1.0], "note": ["kept"]})]


def test_a_conversation_of_tokens_keeps_them(play):
    """The second prompt holds the first answer as it was sampled; each turn has the return that its row says."""
    agent = TwoTurns()
    played = play(agent, ["it is 4", "or 5"], kwargs={"env": Judge()})
    episode = played.episode
    assert episode.outcome.kind == "ok", episode.outcome.reason
    first, second = episode.session.turns
    assert second.prefix == first.id == second.follows
    assert episode.rewards == {first.id: 1.0, second.id: 0.5} and episode.has_returns
    assert episode.left_out == {} and episode.metrics == {"success": 1.0}
    assert episode.metadata == {"note": ["kept"]}
    assert played.engine.calls[1].prompt_ids == (*agent.bundles[0].seqs[0], 65)


def test_a_bundle_says_what_was_sampled(play):
    """Ids, logprobs with zeros on the prompt, versions, and whether the answer was cut."""
    agent = TwoTurns()
    played = play(agent, ["it is 4", "a word " * 40], kwargs={"env": Judge()})
    bundle, cut = agent.bundles
    sampled = played.episode.session.turns[0].sampled
    assert bundle.output_ids == [list(sampled.token_ids)] and bundle.seqs == [bundle.prompt_ids + bundle.output_ids[0]]
    assert bundle.logprobs[0] == [0.0] * (bundle.prompt_len - 1) + list(sampled.logprobs)
    assert bundle.output_logprobs == [list(sampled.logprobs)] and bundle.seqlens == [len(bundle.seqs[0])]
    assert bundle.version_start == bundle.version_end == [0]
    assert (bundle.no_eos, cut.no_eos) == ([False], [True]) and cut.output_lens == [32]


def test_n_answers_come_in_one_bundle(play):
    """They share a prompt, are turns of their own, and each has its own reward."""

    class Group(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            trajectory = TrajectoryBuilder(prompt)
            ids = prompt.data["packed_prompts"].tolist()
            await obs_queue.put((prompt.ids[0], ids, GenerationHyperparameters(n=3)))
            trajectory.add(await act_queue.get())
            return [trajectory.build([0.0, 0.5, 1.0])]

    episode = play(Group, ["a", "b", "c"]).episode
    assert list(episode.rewards.values()) == [0.0, 0.5, 1.0]
    assert [turn.follows for turn in episode.session.turns] == [None] * 3


def test_an_empty_list_rejects_the_episode(play):
    """Nothing is trained, and nothing is played again."""

    class Refuses(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            return []

    assert play(Refuses, []).episode.outcome.kind == "rejected"


def test_actions_come_in_the_order_of_observations(play):
    """Two observations at once: the first action answers the first, though it takes longer."""

    class Both(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            ids = prompt.data["packed_prompts"].tolist()
            await obs_queue.put(("long", ids, None))
            await obs_queue.put(("short", [*ids, 65], None))
            bundles = [await act_queue.get(), await act_queue.get()]
            trajectory = TrajectoryBuilder(prompt)
            for bundle in bundles:
                trajectory.add(bundle)
            return [trajectory.build([1.0, 2.0], {"asked": [[bundle.qid for bundle in bundles]]})]

    answers = {False: "a long answer with many words in it", True: "short"}
    episode = play(Both, lambda call: answers[call.prompt_ids[-1] == 65]).episode
    assert episode.metadata == {"asked": [["long", "short"]]}


def test_a_limit_is_raised_where_the_action_is_awaited(play):
    """An agent that catches it may still return what it has; the episode is truncated."""

    class Asks(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            trajectory = TrajectoryBuilder(prompt)
            ids = prompt.data["packed_prompts"].tolist()
            try:
                while True:
                    await obs_queue.put((prompt.ids[0], ids, None))
                    act = await act_queue.get()
                    trajectory.add(act)
                    ids = [*act.seqs[0], 65]
            except Exception:
                return [trajectory.build([1.0, 1.0])]

    episode = play(Asks, lambda call: "word", max_turns=2).episode
    assert (episode.outcome.kind, len(episode.rewards)) == ("truncated", 2)


def test_what_is_asked_and_never_taken_is_aborted(play):
    """An answer in flight when the agent returns is no part of the reward."""

    class Leaves(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            ids = prompt.data["packed_prompts"].tolist()
            trajectory = TrajectoryBuilder(prompt)
            await obs_queue.put((prompt.ids[0], ids, None))
            trajectory.add(await act_queue.get())
            await obs_queue.put((prompt.ids[0], [*ids, 65], None))
            return [trajectory.build([1.0])]

    episode = play(Leaves, lambda call: "word " * 100).episode
    assert episode.outcome.kind == "ok" and len(episode.rewards) == 1


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("prompt", "put \\(qid, token_ids, gconfig\\)"),
        (("q", ["a"], None), "must be integers"),
        (("q", [], None), "at least one token"),
        (("q", [1], {"max_tokens": 3}), "no parameter 'max_tokens'"),
        (("q", [1], {"min_new_tokens": 3}), "min_new_tokens=3 cannot act"),
    ],
)
def test_a_wrong_observation_fails_the_episode_by_name(play, item, message):
    """What was put and what is allowed."""

    class Puts(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            await obs_queue.put(item)
            await act_queue.get()

    outcome = play(Puts, ["x"]).episode.outcome
    assert outcome.kind == "failed"
    with pytest.raises(UserError, match=message):
        raise UserError(outcome.reason)


def test_tokens_that_were_not_sampled_fail_the_episode(play):
    """A sample that marks another token than the record's is refused."""

    class Invents(TwoTurns):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            (sample,) = await super().collect_trajectory(prompt, env, obs_queue, act_queue)
            sample.data["packed_input_ids"][-1] = 7
            return [sample]

    outcome = play(Invents, ["it is 4", "or 5"], kwargs={"env": Judge()}).episode.outcome
    assert outcome.kind == "failed" and "did not sample it there" in outcome.reason


@pytest.mark.parametrize("returned", [None, "sample", [1]])
def test_what_is_no_list_of_samples_fails_the_episode(play, returned):
    """The type that came back is named."""

    class Returns(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            return returned

    outcome = play(Returns, []).episode.outcome
    assert outcome.kind == "failed" and "SequenceSample" in outcome.reason


def test_a_sample_without_its_keys_is_named(play):
    """What is missing, and what is needed."""

    class Half(TwoTurns):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            (sample,) = await super().collect_trajectory(prompt, env, obs_queue, act_queue)
            return [sample.select({"packed_input_ids", "rewards"})]

    outcome = play(Half, ["4", "5"], kwargs={"env": Judge()}).episode.outcome
    assert outcome.kind == "failed" and "no data under 'prompt_mask'" in outcome.reason


def test_steps_of_an_environment_are_spans(play):
    """Each reset and step is timed, with what went in and what came out."""
    spans = play(TwoTurns, ["4", "5"], kwargs={"env": Judge()}).episode.spans
    assert [span.name for span in spans] == ["Judge.reset", "Judge.step", "Judge.step"]
    assert spans[1].kind == "tool" and spans[1].outputs[2] is True


def test_an_environment_of_its_own_for_each_episode(play):
    """Where an environment keeps state, the episode gets one that knows its row, and it is closed."""
    seen = []

    class Stateful(Judge):
        def __init__(self, row=None):
            self.row = row

        def for_episode(self, row):
            return Stateful(row)

        async def close(self):
            seen.append(self.row and self.row["query_id"])

    assert play(TwoTurns, ["4", "5"], kwargs={"env": Stateful}).episode.outcome.kind == "ok"
    assert seen == ["q1", None]


def test_the_run_says_how_answers_are_sampled_where_the_agent_does_not(play):
    """None in gconfig is the run's; a greedy agent and a cut of the whole vocabulary are read as they are meant."""
    base = play(TwoTurns, ["4", "5"], kwargs={"env": Judge()}).engine.calls[0].sampling
    assert (base.temperature, base.max_new_tokens, base.top_p) == (1.0, 32, 1.0)
    asked = GenerationHyperparameters(greedy=True, top_k=10**8, max_new_tokens=5, stop_token_ids=[3]).sampling(base)
    assert (asked.temperature, asked.top_k, asked.max_new_tokens, asked.stop_token_ids) == (0.0, 0, 5, (3,))


def test_foreign_parameters_are_read():
    """A mapping or an object of one's own with fields of the same names."""

    @dataclass
    class Mine:
        n: int = 2
        temperature: float = 0.5
        top_p: float = 1.0

    assert GenerationHyperparameters.of(Mine()) == GenerationHyperparameters(n=2, temperature=0.5, top_p=1.0)
    assert GenerationHyperparameters.of({"n": 3}).new(n=1, top_k=4) == GenerationHyperparameters(top_k=4)
    with pytest.raises(UserError, match="none of the parameters"):
        GenerationHyperparameters.of(3)


def test_agents_and_environments_by_registered_name(play):
    """An abstraction names both; for a name that nobody registered the nearest is told."""
    agent = AgentAbstraction("null", {"episode_length": 2})
    assert list(play(agent, ["a", "b"]).episode.rewards.values()) == [0.0, 0.0]
    with pytest.raises(UserError, match="did you mean 'math-multi-turn'"):
        resolve_workflow(AgentAbstraction("math-mutli-turn"))
    with pytest.raises(UserError, match="no environment is registered as 'nul'"):
        resolve_workflow(agent, {"env": EnvServiceAbstraction("nul")})


@pytest.mark.parametrize(
    ("workflow", "kwargs", "message"),
    [
        (TwoTurns, {"m": 3}, "cannot be made with workflow_kwargs"),
        (TwoTurns(), {"n": 3}, "cannot act on an instance"),
        (AgentAbstraction("null"), {"traj_size": 3}, "the arguments of an AgentAbstraction are in it"),
        (TwoTurns, {"env": object()}, "no `async def reset`"),
        (TwoTurns, {"env": {"type": "null"}}, "unknown key 'type'"),
        (type("Sync", (), {"collect_trajectory": lambda self, **_: []}), {}, "must have `async def collect_traj"),
    ],
)
def test_what_cannot_play_is_refused_before_anything_runs(workflow, kwargs, message):
    """Agent, its arguments and its environment are looked at when the run begins."""
    with pytest.raises(UserError, match=message):
        resolve_workflow(workflow, kwargs, kinds=Config.agent_kinds)


def test_an_agent_of_ones_own_keeps_its_state(play):
    """An instance plays all episodes."""
    agent = TwoTurns()
    play(agent, ["4", "5"], kwargs={"env": Judge()})
    play(agent, ["4", "5"], kwargs={"env": Judge()})
    assert len(agent.bundles) == 4


def test_blocking_work_beside_the_queues(play):
    """An environment may hand its work to a thread, as the originals do."""

    class Threaded(Judge):
        async def step(self, action):
            rewards = await asyncio.to_thread(lambda answers: [1.0 for _ in answers], action[1])
            return None, rewards, True, False, {}

    assert play(TwoTurns, ["4", "5"], kwargs={"env": Threaded}).episode.outcome.kind == "ok"


def test_several_samples_are_several_rows(play):
    """Each turn as a sample of its own means the same as all in one."""

    class Apart(TwoTurns):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            (sample,) = await super().collect_trajectory(prompt, env, obs_queue, act_queue)
            halves = []
            for bundle, reward in zip(self.bundles, sample.data["rewards"].tolist(), strict=True):
                trajectory = TrajectoryBuilder(prompt)
                trajectory.add(bundle)
                halves.append(trajectory.build([reward]))
            return halves

    episode = play(Apart, ["4", "5"], kwargs={"env": Judge()}).episode
    assert list(episode.rewards.values()) == [1.0, 0.5]


class Hangs(Judge):
    async def step(self, action):
        await asyncio.Event().wait()


class WaitsForNothing(Agent):
    async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
        await act_queue.get()


@pytest.mark.parametrize(("agent", "env"), [(TwoTurns, Hangs), (WaitsForNothing, Judge)], ids=["environment", "agent"])
def test_what_hangs_is_ended_by_the_episodes_time(play, agent, env):
    """An environment that never answers, and an agent that waits for an action that it never asked for."""
    outcome = play(agent, lambda call: "4", kwargs={"env": env}, episode_timeout_s=0.3).episode.outcome
    assert outcome.kind == "timeout" and "episode_timeout_s=0.3" in outcome.reason


def test_an_agent_that_raises_fails_alone(play):
    """Its own line is in the reason, and its environment is closed."""
    closed = []

    class Breaks(Agent):
        async def collect_trajectory(self, prompt, env, obs_queue, act_queue):
            raise ValueError("no idea")

    class Own(Judge):
        def for_episode(self, row):
            return Own()

        async def close(self):
            closed.append(self)

    outcome = play(Breaks, [], kwargs={"env": Own}).episode.outcome
    assert outcome.kind == "failed" and "no idea" in outcome.reason and "in collect_trajectory" in outcome.reason
    assert len(closed) == 2
