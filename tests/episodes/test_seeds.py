from __future__ import annotations

from ludus.episodes.seeds import Seeds, session_seed


def test_seed_depends_on_what_is_asked_and_how_often() -> None:
    """Prompts in any order get the same seeds; a prompt asked again gets another."""
    one, other = Seeds(7), Seeds(7)
    a, b, a_again = one.draw((1, 2)), one.draw((1, 3)), one.draw((1, 2))
    assert (other.draw((1, 3)), other.draw((1, 2)), other.draw((1, 2))) == (b, a, a_again)
    assert len({a, b, a_again, Seeds(8).draw((1, 2))}) == 4


def test_a_request_that_is_sent_again_is_no_other_sample() -> None:
    """Under its retry key a prompt has one seed, however often it was broken off; other prompts go on as they would."""
    one, other = Seeds(7), Seeds(7)
    a, a_again, b = one.draw((1, 2), "key"), one.draw((1, 2), "key"), one.draw((1, 2))
    assert a == a_again == other.draw((1, 2)) and b == other.draw((1, 2)) != a
    assert one.draw((1, 3), "key") == other.draw((1, 3))


def test_seeds_fit_into_a_signed_64_bit_integer() -> None:
    """Seeds survive JSON and SQLite, with room for the index of a choice."""
    assert all(0 <= session_seed(f"session {idx}") < 2**62 for idx in range(100))
    assert session_seed("a") != session_seed("b")


def test_a_prompt_has_its_seeds_whatever_was_asked_before() -> None:
    """Prompts that go on with one another get the seeds that each gets alone."""
    prompts = [tuple(range(num)) for num in (3, 5, 5, 9)] + [(0, 1), (7, 8, 9), tuple(range(9))]
    together = Seeds(7)
    drawn = [together.draw(prompt) for prompt in prompts]
    assert len(set(drawn)) == len(drawn)
    for at in (0, 1, 3, 4, 5):
        assert Seeds(7).draw(prompts[at]) == drawn[at]
