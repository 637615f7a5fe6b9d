"""Export: every sampled token is trained once or masked for one named reason, in the same way by both styles."""

from collections import Counter
from dataclasses import replace

import pytest

from ludus.algorithms.base import TokenAdvantages
from ludus.algorithms.pack import LogitProcessing, pack
from ludus.episodes.export import TokenBounds, TurnCredit, export_session, trained_places
from ludus.episodes.graph import SessionGraph
from ludus.episodes.ledger import Ledger
from ludus.errors import InternalError
from ludus.types import Message, Sampled, Sampling, SessionRecord

both_styles = pytest.mark.parametrize("style", ["individual", "concat"])


class Play:
    """A session made of bare token ids."""

    def __init__(self):
        self.graph = SessionGraph("s")

    def turn(self, turn_id, context, token_ids, *, after=None, sampling=Sampling(), **sampled):  # noqa: B008
        """A turn with `context` after the path of turn `after`; `sampled`: fields of what the engine returned."""
        path = self.graph.path_ids(after) if after else ()
        self.graph.add_turn(
            turn_id=turn_id,
            prompt_ids=(*path, *context),
            prefix=after,
            follows=after,
            fork=None,
            messages=(Message("user", turn_id),),
            reply=Message("assistant", ""),
            sampled=Sampled(
                token_ids=tuple(token_ids),
                logprobs=tuple(-token / 100 for token in token_ids),
                **{"versions": (0,) * len(token_ids), "stop_reason": "stop", **sampled},
            ),
            sampling=sampling,
        )


def trained(advantage=1.0):
    return TurnCredit(advantage=advantage, mask=None)


def masked(reason):
    return TurnCredit(advantage=None, mask=reason)


def export(play, credit, *, style="individual", weight=1.0, **limits):
    return export_session(play.graph.snapshot(), credit, weight=weight, style=style, **limits)


def shape(exported):
    return [(item.token_ids, item.target_idx) for item in exported.sequences]


@pytest.fixture
def play():
    return Play()


@pytest.fixture
def tree(play):
    """a, then b and c after it, then d after c; each adds one token of context and samples two."""
    play.turn("a", [1], [10, 11])
    play.turn("b", [2], [20, 21], after="a")
    play.turn("c", [3], [30, 31], after="a")
    play.turn("d", [4], [40, 41], after="c")
    return play


def test_individual(tree):
    """`individual`: one sequence per turn, its own tokens trained, up to the last of them."""
    exported = export(tree, {"a": trained(1), "b": trained(2), "c": trained(3), "d": trained(4)}, weight=0.5)
    assert shape(exported) == [
        ((1, 10, 11), (1, 2)),
        ((1, 10, 11, 2, 20, 21), (4, 5)),
        ((1, 10, 11, 3, 30, 31), (4, 5)),
        ((1, 10, 11, 3, 30, 31, 4, 40, 41), (7, 8)),
    ]
    last = exported.sequences[-1]
    assert last.advantages == (4.0, 4.0)
    assert last.weights == (0.5, 0.5)
    assert last.logprobs == (-0.4, -0.41)
    assert exported.ledger == Ledger(8, 8, {})


def test_concat(tree):
    """`concat`: one sequence per leaf; what two leaves share is trained in the first."""
    exported = export(tree, {"a": trained(1), "b": trained(2), "c": trained(3), "d": trained(4)}, style="concat")
    assert shape(exported) == [
        ((1, 10, 11, 2, 20, 21), (1, 2, 4, 5)),
        ((1, 10, 11, 3, 30, 31, 4, 40, 41), (4, 5, 7, 8)),
    ]
    assert exported.sequences[0].advantages == (1.0, 1.0, 2.0, 2.0)
    assert exported.sequences[1].advantages == (3.0, 3.0, 4.0, 4.0)
    assert exported.ledger == Ledger(8, 8, {})


def test_masked_leaf(tree):
    """A masked leaf makes no sequence; the turns above it are trained in those of other leaves or end their own."""
    credit = {"a": trained(), "b": masked("no_credit"), "c": trained(), "d": masked("rejected")}
    exported = export(tree, credit, style="concat")
    assert shape(exported) == [((1, 10, 11, 3, 30, 31), (1, 2, 4, 5))]
    assert exported.ledger == Ledger(8, 4, {"no_credit": 2, "rejected": 2})


@both_styles
def test_masked_in_the_middle(tree, style):
    """A masked turn is context for those after it."""
    credit = {"a": masked("failed"), "b": masked("failed"), "c": masked("failed"), "d": trained()}
    exported = export(tree, credit, style=style)
    assert shape(exported) == [((1, 10, 11, 3, 30, 31, 4, 40, 41), (7, 8))]
    assert exported.ledger == Ledger(8, 2, {"failed": 6})


@both_styles
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stop_reason": "abort"}, "aborted"),
        ({"sampling": Sampling(temperature=0.0)}, "greedy"),
        ({"sampling": Sampling(top_p=0.9)}, "kept_set"),
        ({"sampling": Sampling(top_k=5)}, "kept_set"),
        ({"sampling": Sampling(min_p=0.1)}, "kept_set"),
        ({"sampling": Sampling(temperature=0.0, grammar="start: /.*/")}, "greedy"),
    ],
)
def test_turns_that_cannot_be_trained(play, style, fields, reason):
    """What the trainer cannot recompute, or no agent saw to its end, is masked by its own reason."""
    play.turn("a", [1], [10, 11], **fields)
    play.turn("b", [2], [20], after="a")
    exported = export(play, {"a": trained(), "b": trained()}, style=style)
    assert shape(exported) == [((1, 10, 11, 2, 20), (4,))]
    assert exported.ledger == Ledger(3, 1, {reason: 2})


@both_styles
def test_tokens_with_a_known_kept_set_are_trained(play, style):
    """A token goes with the ids it was drawn among; one whose kept set was too large to be recorded is masked."""
    play.turn("a", [1], [10, 11, 12], sampling=Sampling(top_p=0.9), kept_ids=((9, 10), None, (12,)))
    play.turn("b", [2], [20], after="a")
    exported = export(play, {"a": trained(), "b": trained()}, style=style)
    assert exported.ledger == Ledger(4, 3, {"kept_set": 1})
    kept = {
        item.token_ids[idx]: item.kept_ids[at] if item.kept_ids else ()
        for item in exported.sequences
        for at, idx in enumerate(item.target_idx)
    }
    assert kept == {10: (9, 10), 12: (12,), 20: ()}
    (row,) = pack(exported.sequences, row_tokens=64)
    assert dict(zip(row.target_ids, row.kept_ids, strict=True)) == kept


@both_styles
def test_tokens_with_changed_logits_are_trained(play, style):
    """Penalties and biases go with the tokens, and where in its path the answer begins."""
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1}
    play.turn("a", [1], [10, 11])
    play.turn("b", [2, 3], [20, 21], after="a", sampling=Sampling(**penalties))
    play.turn("c", [4], [30], after="b", sampling=Sampling(logit_bias=((7, 1.5),)))
    exported = export(play, {"a": trained(), "b": trained(), "c": trained()}, style=style)
    assert exported.ledger == Ledger(5, 5, {})
    (row,) = pack(exported.sequences, row_tokens=64)
    logit_processings = dict(zip(row.target_ids, row.logit_processings, strict=True))
    assert logit_processings[10] is None is logit_processings[11]
    assert logit_processings[20] == logit_processings[21] == LogitProcessing(5, **penalties)
    assert logit_processings[30] == LogitProcessing(8, logit_bias=((7, 1.5),))
    assert row.kept_ids == ()


@both_styles
@pytest.mark.parametrize("kept_ids", [(), ((10,), None)])
def test_a_grammar_that_allows_much_is_walked_through_again(play, style, kept_ids):
    """If kept sets are missing the trainer gets the grammar; if they are all there, only them."""
    held = Sampling(grammar="start: /.*/")
    play.turn("a", [1, 2], [10, 11], sampling=held, kept_ids=kept_ids)
    play.turn("b", [3], [20], after="a", sampling=held, kept_ids=((20, 21),))
    exported = export(play, {"a": trained(), "b": trained()}, style=style)
    (row,) = pack(exported.sequences, row_tokens=64)
    walked = dict(zip(row.target_ids, row.logit_processings, strict=True))
    kept = dict(zip(row.target_ids, row.kept_ids, strict=True))
    assert walked[10] == walked[11] == LogitProcessing(2, grammar="start: /.*/") and walked[20] is None
    assert (kept[10], kept[11], kept[20]) == ((), (), (20, 21))
    assert exported.ledger == Ledger(3, 3, {})


@both_styles
def test_what_is_truncated_within_a_grammar_is_known_or_masked(play, style):
    """A grammar can be walked through again, but not the cut that came after it."""
    held = Sampling(grammar="start: /.*/", top_p=0.9)
    play.turn("a", [1], [10, 11], sampling=held, kept_ids=((9, 10), None))
    exported = export(play, {"a": trained()}, style=style)
    assert exported.ledger == Ledger(2, 1, {"kept_set": 1})
    assert exported.sequences[0].kept_ids == ((9, 10),) and exported.sequences[0].logit_processings == ()


def test_a_token_outside_its_kept_set_is_an_error(play):
    """Such a token cannot have been drawn: the record is broken."""
    play.turn("a", [1], [10], sampling=Sampling(top_k=2), kept_ids=((9, 11),))
    with pytest.raises(InternalError, match="token 10 is none of the 2"):
        export(play, {"a": trained()})


def test_credit_names_the_reason_first(play):
    """A turn that its episode keeps out is masked for the episode's reason, whatever else would keep it out."""
    play.turn("a", [1], [10], stop_reason="abort", sampling=Sampling(temperature=0.0, top_p=0.5))
    assert export(play, {"a": masked("timeout")}).ledger == Ledger(1, 0, {"timeout": 1})
    assert export(play, {"a": trained()}).ledger == Ledger(1, 0, {"aborted": 1})


@both_styles
def test_temperature_is_kept(play, style):
    """Each trained token carries the temperature it was sampled at."""
    play.turn("a", [1], [10], sampling=Sampling(temperature=0.7))
    play.turn("b", [2], [20], after="a")
    exported = export(play, {"a": trained(), "b": trained()}, style=style)
    assert [value for item in exported.sequences for value in item.temperatures] == [0.7, 1.0]


@both_styles
def test_stale_tokens(play, style):
    """Staleness is judged token by token; the admitted ones of the same turn are trained."""
    play.turn("a", [1], [10, 11, 12], versions=(3, 4, 4))
    play.turn("b", [2], [20, 21], after="a", versions=(5, 3))
    exported = export(play, {"a": trained(), "b": trained()}, style=style, bounds=TokenBounds(stale_before=4))
    targets = [item.token_ids[index] for item in exported.sequences for index in item.target_idx]
    assert targets == [11, 12, 20]
    assert exported.sequences[-1].token_ids == (1, 10, 11, 12, 2, 20)
    assert exported.sequences[-1].versions[-1] == 5
    assert exported.ledger == Ledger(5, 3, {"stale": 2})


@both_styles
def test_too_long(tree, style):
    """Tokens beyond the longest sequence are masked; no sequence is longer."""
    credit = {turn_id: trained() for turn_id in "abcd"}
    exported = export(tree, credit, style=style, bounds=TokenBounds(max_tokens=5))
    assert max(len(item.token_ids) for item in exported.sequences) == 5
    assert exported.ledger == Ledger(8, 4, {"too_long": 4})


@both_styles
def test_samples_of_one_prompt(play, style):
    """Siblings are each trained once, also when they sampled the same tokens; packing stores those once."""
    for turn_id in "ab":
        play.turn(turn_id, [1, 2], [10, 11])
    play.turn("c", [3], [30], after="b")
    exported = export(play, {"a": trained(1), "b": trained(2), "c": trained(3)}, style=style)
    assert exported.ledger == Ledger(5, 5, {})
    (row,) = pack(exported.sequences, row_tokens=64)
    assert row.token_ids == (1, 2, 10, 11, 3)
    assert sorted(zip(row.target_ids, row.advantages, strict=True)) == [(10, 1), (10, 2), (11, 1), (11, 2), (30, 3)]


@both_styles
def test_turn_without_tokens(play, style):
    """A turn that sampled nothing trains nothing and breaks nothing."""
    play.turn("a", [1], [])
    play.turn("b", [2], [20], after="a")
    exported = export(play, {"a": trained(), "b": trained()}, style=style)
    assert shape(exported) == [((1, 2, 20), (2,))]
    assert exported.ledger == Ledger(1, 1, {})


@both_styles
def test_forked_turn(play, style):
    """A turn whose reasoning was stripped is trained where it was sampled, and again nowhere."""
    play.turn("a", [1], [8, 9, 10])
    play.graph.add_turn(
        turn_id="b",
        prompt_ids=(1, 10, 2),
        prefix=None,
        follows="a",
        fork="reasoning_stripped",
        messages=(Message("user", "b"),),
        reply=Message("assistant", ""),
        sampled=Sampled((20,), (-1.0,), (0,), "stop"),
        sampling=Sampling(),
    )
    exported = export(play, {"a": trained(), "b": trained()}, style=style)
    assert shape(exported) == [((1, 8, 9, 10), (1, 2, 3)), ((1, 10, 2, 20), (3,))]
    assert exported.ledger == Ledger(4, 4, {})


@both_styles
def test_empty_session(play, style):
    """A session without turns exports nothing."""
    exported = export(play, {}, style=style)
    assert exported.sequences == ()
    assert exported.ledger == Ledger()


def test_trained_places(tree):
    """As many as the export with the same arguments trains; a turn without any is left out."""
    credit = {"a": trained(), "b": masked("stale"), "c": trained(), "d": trained()}
    for bounds in (TokenBounds(), TokenBounds(max_tokens=5), TokenBounds(stale_before=1)):
        ledger = export(tree, credit, bounds=bounds).ledger
        places = trained_places(tree.graph.snapshot(), credit, bounds=bounds)
        assert sum(map(len, places.values())) == ledger.trained and "b" not in places


def test_zero_advantage_is_trained(play):
    """An advantage of 0 is an advantage: the token is trained, and terms besides the advantage act on it."""
    play.turn("a", [1], [10])
    assert export(play, {"a": trained(0.0)}).ledger == Ledger(1, 1, {})


def test_missing_credit(tree):
    """A turn without credit is an error that names it, never a silent mask."""
    with pytest.raises(InternalError, match="turn b of session s has neither"):
        export(tree, {"a": trained(), "c": trained(), "d": trained()})


def test_damaged_record(tree):
    """A record whose nodes do not hold what its turns sampled is refused."""
    record = tree.graph.snapshot()
    nodes = list(record.nodes)
    nodes[1] = replace(nodes[1], token_ids=(10,))
    damaged = SessionRecord(record.id, tuple(nodes), record.turns)
    with pytest.raises(InternalError, match="does not hold what turn a sampled"):
        export_session(damaged, dict.fromkeys("abcd", trained()), weight=1.0, style="concat")


@pytest.mark.parametrize(
    ("advantage", "mask"), [(None, None), (1.0, "stale"), (float("nan"), None), (float("inf"), None)]
)
def test_bad_credit(advantage, mask):
    """Credit is a finite advantage or a reason, exactly one of them."""
    with pytest.raises(InternalError):
        TurnCredit(advantage=advantage, mask=mask)


def test_styles_agree(tree):
    """Both styles train the same tokens after the same tokens."""
    credit = {"a": trained(1), "b": trained(2), "c": trained(3), "d": trained(4)}
    found = [
        Counter(
            (item.token_ids[: index + 1], advantage)
            for item in export(tree, credit, style=style).sequences
            for index, advantage in zip(item.target_idx, item.advantages, strict=True)
        )
        for style in ("individual", "concat")
    ]
    assert found[0] == found[1]


@both_styles
def test_credit_by_token(tree, style):
    """A turn may have an advantage, a value and its target for each token that can be trained, and for no other."""
    by_token = {
        name: TurnCredit(TokenAdvantages((at, at + 0.5), values=(0.1, 0.2), value_targets=(at, 1.0)), mask=None)
        for at, name in enumerate("abcd")
    }
    exported = export(tree, by_token, style=style)
    (row,) = pack(exported.sequences, row_tokens=64)
    of_token = {10: 0.0, 11: 0.5, 20: 1.0, 21: 1.5, 30: 2.0, 31: 2.5, 40: 3.0, 41: 3.5}
    assert [of_token[token] for token in row.target_ids] == list(row.advantages)
    assert row.values == (0.1, 0.2) * 4 and row.value_targets[0::2] == row.advantages[0::2]
    assert by_token["c"].mean == 2.25 and by_token["a"].teaches
    assert not TurnCredit(TokenAdvantages((0.0, 0.0)), mask=None).teaches
    with pytest.raises(InternalError, match="turn c has 2 advantages of 1 tokens"):
        export(tree, by_token, left_out={"c": (0,)})
