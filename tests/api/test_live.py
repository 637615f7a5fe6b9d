"""What a person sees while a run trains."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from ludus.api.live import LivePanel, NotebookPanel, PlainLines, Progress, duration, sparkline, watch, watch_script
from ludus.episodes.ledger import Ledger
from ludus.loop.observer import RunSummary
from ludus.runs.failures import Failure

STEP = {"rollout/reward": 0.25, "rollout/success": 0.5, "rollout/tokens_per_s": 612.0, "time/step_s": 10.0}
SUMMARY = RunSummary(
    run="runs/x", steps=3, stopped_by="total_train_steps", train_seconds=61.0, eval_seconds=0.0, ledger=Ledger()
)


def _console(*, is_terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, force_terminal=is_terminal), out


def test_without_a_terminal_there_is_a_line_a_step() -> None:
    """Each step is one plain line with reward, success, speed and the time left."""
    console, out = _console(is_terminal=False)
    with watch(console, "run") as observer:
        assert isinstance(observer, PlainLines)
        observer.on_phase("loading small")
        observer.on_start(3, None)
        observer.on_eval(0, {"eval/success": 0.03})
        observer.on_step(1, STEP)
        observer.on_end(SUMMARY)
    assert out.getvalue().splitlines() == [
        "loading small",
        "eval at step 0  success 3%",
        "step 1/3  reward 0.250  success 50%  tokens/s 612  s/step 10.0  left 0:20",
        "done: 3 steps in 1:01 (total_train_steps)",
    ]


def test_sources_of_rows_and_skipped_rows_are_shown() -> None:
    """Reward and success of each source, and what the curriculum skipped, on a line and in the panel."""
    more = {
        "rollout/reward/sums": 0.5,
        "rollout/success/sums": 1.0,
        "rollout/reward/words": 0.0,
        "data/skipped_solved": 3,
    }
    console, out = _console(is_terminal=False)
    PlainLines(console).on_step(1, {**STEP, **more})
    line = "sums 0.500 (100%)  words 0.000  skipped, solved 3"
    assert line in out.getvalue()
    panel = LivePanel(console, "run")
    panel.on_step(1, {**STEP, **more})
    console.print(panel.render())
    assert "sums 0.500 (100%) · words 0.000 · skipped, solved 3" in out.getvalue()


def test_on_a_terminal_there_is_a_panel() -> None:
    """The panel shows the step, the figures, the rewards so far and the held-out success."""
    console, _ = _console(is_terminal=True)
    with watch(console, "guess") as observer:
        assert isinstance(observer, LivePanel)
        observer.on_phase("loading small")
        plain, out = _console(is_terminal=False)
        plain.print(observer.render())
        assert "loading small" in out.getvalue()
        observer.on_start(4, None)
        observer.on_eval(0, {"eval/success": 0.03})
        observer.on_step(1, STEP)
        observer.on_step(2, {**STEP, "rollout/reward": 0.75})
        plain, out = _console(is_terminal=False)
        plain.print(observer.render())
    assert "loading small" not in out.getvalue()
    for text in ("guess", "step 2/4", "0:20 left", "50%", "612", "▁█", "3% at step 0"):
        assert text in out.getvalue(), text


def test_the_terminal_is_given_back_after_an_error() -> None:
    """When the run raises, the live display has stopped and the cursor is back."""
    console, out = _console(is_terminal=True)
    with pytest.raises(RuntimeError), watch(console, "run") as observer:
        observer.on_phase("loading small")
        raise RuntimeError
    assert out.getvalue().count("\x1b[?25h") == out.getvalue().count("\x1b[?25l") == 1


class Terminal(io.StringIO):
    """A stdout that somebody looks at, or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "is_wanted", "on_stdout", "on_stderr"),
    [
        (True, None, True, False),
        (True, True, True, False),
        (True, False, False, False),
        (False, None, False, False),
        (False, True, False, True),
        (False, False, False, False),
    ],
)
def test_a_script_shows_its_run_where_somebody_looks(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, is_wanted: bool | None, on_stdout: bool, on_stderr: bool
) -> None:
    """On a terminal by itself, elsewhere when it is asked to, and then on stderr: what goes through a pipe is the
    script's own."""
    out, error = Terminal(is_terminal=is_terminal), Terminal(is_terminal=False)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", error)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with watch_script("guess", is_wanted) as observer:
        observer.on_phase("loading small")
        observer.on_start(4, None)
        observer.on_step(1, STEP)
        observer.on_end(SUMMARY)
    assert ("step" in out.getvalue(), "step 1/4" in error.getvalue()) == (on_stdout, on_stderr)


def test_in_a_notebook_the_panel_is_drawn_in_its_place() -> None:
    """Anew with all that happens, as HTML and as text; names of a run's are no HTML."""
    drawn: list[tuple[str, str]] = []
    panel = NotebookPanel("<guess>", lambda html, text: drawn.append((html, text)))
    panel.on_phase("loading small")
    panel.on_start(4, None)
    panel.on_eval(0, {"eval/success": 0.03})
    panel.on_step(1, STEP)
    panel.on_end(SUMMARY)
    assert "loading small" in drawn[0][1] and "step 1/4" in drawn[-1][1] and "3% at step 0" in drawn[-1][0]
    assert "&lt;guess&gt;" in drawn[-1][0] and "<guess>" in drawn[-1][1] and len(drawn) == 4
    assert drawn[-1][0].startswith("<pre") and "color" in drawn[-1][0]


@pytest.mark.parametrize(
    ("total_steps", "total_seconds", "left_s"),
    [(10, None, 80.0), (None, 50.0, 30.0), (10, 50.0, 30.0), (3, 500.0, 10.0), (None, None, None)],
)
def test_time_left_is_that_of_the_end_that_comes_first(
    total_steps: int | None, total_seconds: float | None, left_s: float | None
) -> None:
    """After two steps of ten seconds each, whichever limit ends the run first tells the time left."""
    progress = Progress(clock=lambda: 0.0)
    progress.on_start(total_steps, total_seconds)
    progress.on_step(1, {"time/step_s": 10.0})
    progress.on_step(2, {"time/step_s": 10.0})
    assert progress.left_s == left_s


def test_a_resumed_run_counts_only_its_own_steps() -> None:
    """Going on from step 7, the pace is that of the steps since."""
    progress = Progress(clock=lambda: 0.0)
    progress.on_start(10, None)
    progress.on_step(8, {"time/step_s": 5.0})
    assert progress.left_s == 10.0


def test_of_the_seconds_of_a_run_a_resumed_one_has_what_is_left() -> None:
    """An hour was asked for, and it is resumed after 50 minutes."""
    progress = Progress(clock=lambda: 0.0)
    progress.on_start(None, 3600.0)
    progress.on_step(8, {"time/step_s": 60.0, "time/train_total_s": 3060.0})
    assert progress.left_s == 540.0 and progress.share == 0.85


@pytest.mark.parametrize("is_terminal", [True, False])
def test_half_a_character_of_an_agent_ends_no_run(is_terminal: bool) -> None:
    """As it stands in an error that has a cut text in it; a file and a terminal take none."""
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    failure = Failure("failed", "ValueError: \ud83d", 1, "row-\ud83d", "Traceback\nValueError: \ud83d")
    with watch(Console(file=file, width=100, force_terminal=is_terminal), "run") as observer:
        observer.on_phase("loading small")
        observer.on_failures((failure,))
        observer.on_end(replace(SUMMARY, failures=(failure,)))
    file.flush()
    assert b"ValueError: \\ud83d" in file.buffer.getvalue()  # type: ignore[attr-defined]


def test_held_out_rows_without_success_have_their_reward() -> None:
    console, out = _console(is_terminal=False)
    panel = LivePanel(console, "run")
    panel.on_eval(0, {"eval/reward": 0.25})
    panel.on_eval(5, {"eval/reward": -1.5, "eval/success": 0.5})
    panel.on_eval(6, {"eval/turns": 2.0})
    console.print(panel.render())
    assert "reward 0.250 at step 0 → 50% at step 5 → – at step 6" in out.getvalue()


def test_a_sparkline_shows_the_shape() -> None:
    """Low is low, high is high, long series are averaged, values that are not numbers are left out."""
    assert sparkline([0.0, 1.0, float("nan"), 2.0]) == "▁▅█"
    assert len(sparkline([float(value) for value in range(500)], width=10)) == 10
    assert sparkline([]) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3725, "1:02:05")])
def test_durations_read_like_clocks(seconds: float, text: str) -> None:
    """Hours appear only when there are some."""
    assert duration(seconds) == text
