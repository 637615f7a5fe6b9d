"""What rollouts of a `TrainableModel` did goes to MLflow too, when it is trained."""

from __future__ import annotations

import asyncio

import pytest

from tests.compat.art.test_local_backend import MakeBackend, MakeModel, gather


def test_trajectories_are_traced(
    make_backend: MakeBackend, make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Every episode of a step is handed on; that there is no server costs a warning."""

    async def main() -> None:
        model = make_model(
            _internal_config={"trackers": {"to": "mlflow", "mlflow": {"tracking_uri": "http://127.0.0.1:9"}}}
        )
        async with make_backend() as backend:
            await model.register(backend)
            assert (await model.train(await gather(model))).step == 1

    asyncio.run(main())
    assert "6 episodes are missing" in caplog.text
