"""Rows that an agent returns are found again in the record, token by token, or refused."""

from dataclasses import replace

import pytest

from ludus.episodes.claim import TokenRow, claim_rows
from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.spec import SessionSpec
from ludus.errors import UserError
from ludus.types import Message, Node, Sampled, Sampling, SessionRecord, Turn


def turn(turn_id, node, token_ids, follows=None):
    sampled = Sampled(token_ids, (-1.0,) * len(token_ids), (0,) * len(token_ids), "stop")
    return Turn(turn_id, node, follows, follows, None, (), Message("assistant", ""), sampled, Sampling())


# 1 2 [3 4] 5 [6 7], and beside the second answer another one: 1 2 [3 4] 5 [8].
RECORD = SessionRecord(
    "s",
    (Node(None, (1, 2)), Node(0, (3, 4), "a"), Node(1, (5,)), Node(2, (6, 7), "b"), Node(2, (8,), "c")),
    (turn("a", 1, (3, 4)), turn("b", 3, (6, 7), "a"), turn("c", 4, (8,), "a")),
)


def test_the_reward_of_a_row_goes_to_its_last_turn():
    """A row over two turns rewards the second; the first is trained through credit alone."""
    result = claim_rows(RECORD, [TokenRow((1, 2, 3, 4, 5, 6, 7), (0, 0, 1, 1, 0, 1, 1), 0.5)])
    assert result.reward == {"b": 0.5}
    assert result.left_out == {"c": (0,)}


def test_two_rows_with_a_common_beginning():
    """Every turn is claimed once, whatever number of rows holds it."""
    rows = [
        TokenRow((1, 2, 3, 4, 5, 6, 7), (0, 0, 1, 1, 0, 1, 1), 1),
        TokenRow((1, 2, 3, 4, 5, 8), (0, 0, 0, 0, 0, 1), 2),
    ]
    result = claim_rows(RECORD, rows)
    assert result.reward == {"b": 1, "c": 2} and result.left_out == {}


def test_what_no_row_marks_is_left_out():
    """A mask of zeros inside an answer, and the end of an answer that the row cuts off."""
    result = claim_rows(RECORD, [TokenRow((1, 2, 3, 4, 5, 6), (0, 0, 0, 1, 0, 1), 1)])
    assert result.left_out == {"a": (0,), "b": (1,), "c": (0,)}
    scored = finish(SessionSpec(), RECORD, Returned(result), started_at=0.0)
    assert scored.outcome.kind == "ok" and scored.left_out == {"a": (0,), "b": (1,), "c": (0,)}


def test_rewards_that_are_returns_stay_with_what_their_rows_mark():
    """One reward for all that a row marks, nothing for what it only holds; a turn of two rows gets their mean."""
    rows = [
        TokenRow((1, 2, 3, 4), (0, 0, 1, 1), 1.0),
        TokenRow((1, 2, 3, 4, 5, 6, 7), (0, 0, 0, 0, 0, 1, 1), 0.25),
        TokenRow((1, 2, 3, 4, 5, 8), (0, 0, 1, 1, 0, 1), 0.5),
    ]
    result = claim_rows(RECORD, rows, are_returns=True)
    assert result.reward == {"a": 0.75, "b": 0.25, "c": 0.5} and result.left_out == {}
    assert finish(SessionSpec(), RECORD, Returned(result), started_at=0.0).has_returns


# 1 2 [3 4] twice, and each goes on: 5 [6] after the first, 5 [7] after the second.
TWINS = SessionRecord(
    "s",
    (
        *(Node(None, (1, 2)), Node(0, (3, 4), "a"), Node(0, (3, 4), "b")),
        *(Node(1, (5,)), Node(3, (6,), "c"), Node(2, (5,)), Node(5, (7,), "d")),
    ),
    (turn("a", 1, (3, 4)), turn("b", 2, (3, 4)), turn("c", 4, (6,), "a"), turn("d", 6, (7,), "b")),
)


def test_two_outputs_with_equal_tokens_claim_a_turn_each():
    """Equal answers to one prompt are two turns: each row rewards one of them, in the order in which they came."""
    first, second = (TokenRow((1, 2, 3, 4), (0, 0, 1, 1), reward) for reward in (1.0, 0.0))
    result = claim_rows(TWINS, [first, second])
    assert result.reward == {"a": 1.0, "b": 0.0} and result.left_out == {"c": (0,), "d": (0,)}
    assert claim_rows(TWINS, [first, second], are_returns=True).reward == {"a": 1.0, "b": 0.0}


def test_a_known_turn_decides_between_equal_ones():
    """Rows that say which turn they hold may come in any order; what is on a path with it follows, and rows that say
    nothing get what is left."""
    one, two = (TokenRow((1, 2, 3, 4), (0, 0, 1, 1), reward, (id_,)) for reward, id_ in ((1.0, "a"), (0.0, "b")))
    for rows in ([one, two], [two, one]):
        assert claim_rows(TWINS, rows).reward == {"a": 1.0, "b": 0.0}
    unknown = TokenRow((1, 2, 3, 4), (0, 0, 1, 1), 0.0)
    assert claim_rows(TWINS, [unknown, one]).reward == {"a": 1.0, "b": 0.0}
    nodes = (*TWINS.nodes[:3], Node(1, (5,)), Node(3, (6,), "c"), Node(2, (5,)), Node(5, (6,), "d"))
    turns = (*TWINS.turns[:2], turn("c", 4, (6,), "a"), turn("d", 6, (6,), "b"))
    second = TokenRow((1, 2, 3, 4, 5, 6), (0, 0, 1, 1, 0, 1), 1.0, ("b",))
    assert claim_rows(SessionRecord("s", nodes, turns), [second], are_returns=True).reward == {"b": 1.0, "d": 1.0}


def test_equal_answers_are_claimed_as_they_were_asked_for():
    """Which of two concurrent requests was answered first, or which choice of one, changes no reward."""
    rows = [TokenRow((1, 2, 3, 4), (0, 0, 1, 1), reward) for reward in (1.0, 0.0)]
    a, b, *others = TWINS.turns
    asked = replace(a, started_at=1.0), replace(b, started_at=2.0)
    choices = replace(a, sampling=Sampling(seed=7)), replace(b, sampling=Sampling(seed=8))
    for pair in (asked, choices):
        for ended in (pair, pair[::-1]):
            record = replace(TWINS, turns=(*ended, *others))
            assert claim_rows(record, rows).reward == {"a": 1.0, "b": 0.0}


def test_of_equal_answers_a_row_holds_the_one_that_it_goes_on_with():
    """What a row holds behind one of two equal turns says which of them it is, also for the rows that say nothing."""
    ends = TokenRow((1, 2, 3, 4), (0, 0, 1, 1), 0.5)
    goes_on = TokenRow((1, 2, 3, 4, 5, 6), (0, 0, 1, 1, 0, 1), 1.0)
    result = claim_rows(TWINS, [ends, goes_on], are_returns=True)
    assert result.reward == {"b": 0.5, "a": 1.0, "c": 1.0} and result.left_out == {"d": (0,)}
    other = TokenRow((1, 2, 3, 4, 5, 7), (0, 0, 1, 1, 0, 1), 0.0)
    result = claim_rows(TWINS, [goes_on, other], are_returns=True)
    assert result.reward == {"a": 1.0, "c": 1.0, "b": 0.0, "d": 0.0} and result.left_out == {}


def test_a_row_that_ends_within_equal_beginnings_claims_one_answer():
    """A row that is cut off holds one of the answers that begin so; another such row holds another."""
    record = SessionRecord(
        "s",
        (Node(None, (1,)), Node(0, (3, 4), "a"), Node(0, (3, 5), "b")),
        (turn("a", 1, (3, 4)), turn("b", 2, (3, 5))),
    )
    rows = [TokenRow((1, 3), (0, 1), 1.0), TokenRow((1, 3), (0, 1), 0.0)]
    result = claim_rows(record, rows)
    assert result.reward == {"a": 1.0, "b": 0.0} and result.left_out == {"a": (1,), "b": (1,)}


@pytest.mark.parametrize(
    ("token_ids", "mask"),
    [((1, 2, 3, 4), (0, 1, 1, 1)), ((1, 2, 3, 9), (0, 0, 1, 1)), ((9, 2, 3, 4), (0, 0, 1, 1))],
    ids=["a token of the prompt", "another token", "after other tokens"],
)
def test_a_marked_token_that_was_not_sampled_there_is_refused(token_ids, mask):
    """Nothing that an agent returns is trained in the place of the record."""
    with pytest.raises(UserError, match="did not sample it there"):
        claim_rows(RECORD, [TokenRow(token_ids, mask, 1)])


def test_a_reward_without_an_answer_is_refused():
    """A row of context alone cannot be worth anything."""
    with pytest.raises(UserError, match="holds no answer"):
        claim_rows(RECORD, [TokenRow((1, 2), (0, 0), 1)])


def test_mask_and_ids_belong_together():
    """Unequal lengths are named."""
    with pytest.raises(UserError, match="2 token ids and a mask of 1"):
        TokenRow((1, 2), (0,))


def test_left_out_of_an_unknown_turn_fails_the_episode():
    """An adapter that names what is not there gets an error."""
    from ludus.episodes.reward import Result

    scored = finish(SessionSpec(), RECORD, Returned(Result(1.0, left_out={"x": (0,)})), started_at=0.0)
    assert scored.outcome.kind == "failed" and "'x'" in scored.outcome.reason
    scored = finish(SessionSpec(), RECORD, Returned(Result(1.0, left_out={"a": (2,)})), started_at=0.0)
    assert scored.outcome.kind == "failed" and "token 2" in scored.outcome.reason
