"""Every file of a run's folder, missing, empty, cut in half and with a flipped bit somewhere: `make attack`.

The laws alone: what each damage is said to be and costs, file by file, stands in `test_damages.py`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ludus
from ludus.checks.verify.training import LettersAgent
from ludus.cli.app import run as run_command
from ludus.runs.codec import encode_episode
from ludus.runs.store import RunStore
from tests.attacks.test_damages import (
    LAST,
    NUM_STEPS,
    OPEN,
    ROWS,
    STAYS_AWAY,
    Damage,
    Watcher,
    config_of,
    copy_of,
    cut,
    empty,
    missing,
    overwrite,
    root,
    same_loggers,
    weights_of,
    why_not,
)

__all__ = ["root"]
HOLD_EPISODES = ("run.db", "run.db-wal")
HOLD_METRICS = ("metrics.jsonl",)
SEEDS = (1, 2, 3)
"""Of places where a bit is flipped."""


def flipped(seed: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        content, rng = path.read_bytes(), random.Random(f"{path.name} {seed}")
        at = rng.randrange(len(content))
        overwrite(path, at, bytes([content[at] ^ (1 << rng.randrange(8))]))

    return flip


HOW: dict[str, Callable[[Path], None]] = {
    "missing": missing,
    "empty": empty,
    "cut": cut,
    **{f"flipped {seed}": flipped(seed) for seed in SEEDS},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("state", ["ended", "killed"])
@pytest.mark.timeout(600)
def test_whatever_is_damaged(
    state: str, how: str, root: Path, tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reports and exports are written; who goes on ends in the same weights or is refused; nothing else is lost."""
    whole = copy_of(root / state / "run", tmp_path / "whole", Damage("writer.lock", lambda path: None))
    names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file() and path.stat().st_size)
    assert len(names) > 20
    with RunStore.open(root / "ended" / "run") as store:
        originals = {encode_episode(episode) for episode in store.episodes()}
    wrong = []
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        run = Path(shutil.copytree(whole, folder / "run"))
        HOW[how](run / name)
        caplog.clear()
        try:
            wrong += [f"{name}: {each}" for each in _broken_laws(run, name, root, tiny_model_folder, originals, caplog)]
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)


def _broken_laws(
    run: Path, name: str, root: Path, model: Path, originals: set[bytes], caplog: pytest.LogCaptureFixture
) -> list[str]:
    broken = []
    with same_loggers():
        broken += [f"ludus {each} failed" for each in ("report", "export") if run_command([each, str(run)]) != 0]
    observer, trainer = Watcher(), ludus.Trainer(config_of(model, run.parent), ROWS)
    refused = why_not(lambda _: trainer.train(LettersAgent, resume=True, observer=observer), run)
    if refused:
        return [*broken, f"refused: {refused}"]
    if weights_of(run) != weights_of(root / "ended" / "run"):
        broken.append("other weights")
    goes_back = len(observer.steps)
    if goes_back and not (name.startswith(LAST) and goes_back == 1):
        broken.append(f"{goes_back} steps were trained again")
    if goes_back and "Going on from step" not in caplog.text and "learned again" not in caplog.text:
        broken.append("what was trained again is not said")
    with RunStore.open(run) as store:
        kept = sum(each.id == OPEN or encode_episode(each) in originals for each in store.episodes())
        if kept < len(originals) + 1 and name not in HOLD_EPISODES and not name.startswith("journal"):
            broken.append(f"{len(originals) + 1 - kept} episodes are lost")
        if len(store.metrics()) < NUM_STEPS and name not in HOLD_METRICS:
            broken.append("metrics are lost")
        left = [each for each in store.damages() if not each.startswith(STAYS_AWAY)]
        broken += [f"still damaged afterwards: {each}" for each in left]
    return broken
