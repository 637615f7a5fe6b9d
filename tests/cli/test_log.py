"""What of the log is shown at a terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ludus.cli.log import MOST_OF_A_KIND, expect_warnings, show_log


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    """Our logger, left as it was found."""
    logger = logging.getLogger("ludus")
    before = logger.handlers, logger.propagate, logger.level
    yield logger
    logger.handlers, logger.propagate, logger.level = before


@pytest.mark.parametrize(("verbose", "num_shown"), [(0, MOST_OF_A_KIND), (1, 10)])
def test_warnings_of_one_message_are_few(
    ours: logging.Logger, capsys: pytest.CaptureFixture[str], verbose: int, num_shown: int
) -> None:
    """Others of the same message are left out, and the last that is shown says so; -v shows them all."""
    show_log(verbose)
    for number in range(10):
        logging.getLogger("ludus.episodes").warning("Failed to decode tool call: %s", number)
    logging.getLogger("ludus.episodes").warning("something else")
    shown = capsys.readouterr().err
    assert shown.count("Failed to decode tool call") == num_shown
    assert ("no more of these are shown" in shown.replace("\n", " ")) == (verbose == 0)
    assert "something else" in shown


def test_expected_warnings_are_not_shown(ours: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that breaks things on purpose is quiet, unless more than warnings was asked for."""
    show_log(0)
    expect_warnings()
    ours.warning("broken on purpose")
    assert capsys.readouterr().err == ""
    show_log(1)
    expect_warnings()
    ours.warning("broken on purpose")
    assert "broken on purpose" in capsys.readouterr().err
