"""Simulated users by the functions with which verl's code makes them itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import ludus.compat.verl.utils.reward_score.gsm8k as scorer
from ludus.compat.verl.interactions.base import BaseInteraction
from ludus.compat.verl.interactions.gsm8k_interaction import Gsm8kInteraction
from ludus.compat.verl.interactions.utils.interaction_registry import (
    get_interaction_class,
    initialize_interactions_from_config,
)
from ludus.compat.verl.resources import LoopResources
from ludus.compat.verl.settings import MultiTurnSettings
from ludus.errors import ConfigError
from tests.compat.verl.conftest import configured

BASE = "ludus.compat.verl.interactions.base.BaseInteraction"


def test_the_base_class_is_one_that_says_nothing(tmp_path: Path) -> None:
    """It can be made, as in verl; a run whose file names it is refused before it begins."""
    (tmp_path / "users.yaml").write_text(f"interaction: [{{class_name: {BASE}, config: {{more: 1}}}}]")
    (user,) = initialize_interactions_from_config(str(tmp_path / "users.yaml")).values()
    assert type(user) is BaseInteraction and (user.name, user.config["more"]) == ("base", 1)
    with pytest.raises(NotImplementedError, match="BaseInteraction has no `generate_response`"):
        asyncio.run(user.generate_response("1", []))
    turns = MultiTurnSettings(interaction_config_path=str(tmp_path / "users.yaml"))
    with pytest.raises(ConfigError, match="base: BaseInteraction needs a method `generate_response`"):
        LoopResources.load(configured(multi_turn=turns))


def test_a_module_that_is_not_there_is_what_python_calls_it(tmp_path: Path) -> None:
    """Code of verl's catches ModuleNotFoundError; it is an error of the configuration as well."""
    (tmp_path / "users.yaml").write_text("interaction: [{class_name: nowhere.at.all.User}]")
    with pytest.raises(ModuleNotFoundError, match=r"interaction\.0: class_name: cannot import 'nowhere\.at\.all"):
        initialize_interactions_from_config(tmp_path / "users.yaml")
    with pytest.raises(ConfigError, match="there is no module 'nowhere'"):
        get_interaction_class("nowhere.User")


def test_the_teacher_of_gsm8k_asks_the_scorer_that_bears_verls_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took its place is asked; and a class that scores otherwise needs no solution."""
    asked: list[Any] = []

    def lenient(answer: str, solution: str, **how: Any) -> float:
        asked.append((answer, solution, how))
        return 1.0

    async def play(teacher: Gsm8kInteraction, **kwargs: Any) -> Any:
        instance_id = await teacher.start_interaction(**kwargs)
        return await teacher.generate_response(instance_id, [{"role": "assistant", "content": "42"}])

    assert asyncio.run(play(Gsm8kInteraction({}), ground_truth="42"))[2] == 0.0  # it lacks the mark ####
    monkeypatch.setattr(scorer, "compute_score", lenient)
    is_over, _, score, _ = asyncio.run(play(Gsm8kInteraction({}), ground_truth="42"))
    assert (is_over, score) == (True, 1.0)
    assert asked == [("42", "42", {"method": "strict", "format_score": 0.0, "score": 1.0})]

    class Own(Gsm8kInteraction):
        async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
            return 0.5

    assert asyncio.run(play(Own({})))[2] == 0.5
