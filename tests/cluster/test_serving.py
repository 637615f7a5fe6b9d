"""An engine of ours as a server: what it says of itself once it can serve nothing any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from safetensors.torch import save

import ludus
from ludus.cluster.address import ListenAddress
from ludus.cluster.serving import serving_engine
from ludus.engines.serving.files import FileWeights
from ludus.errors import BackendError

KEY = "the-key-of-an-engine-that-dies"


def test_an_engine_that_has_died_says_so(tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that were written in part end it: its probe fails, and whoever serves it is told, to start it again."""

    def fail(weights: FileWeights) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(FileWeights, "copy_into_shared", fail)
    config = ludus.Config(model={"path": str(tiny_model_folder), "dtype": "float32"}, engine={"kv_bytes": 2**22})

    async def scenario() -> None:
        async with (
            serving_engine(config, ListenAddress("127.0.0.1", 0, KEY)) as served,
            httpx.AsyncClient(base_url=served.url, headers={"x-api-key": KEY}, trust_env=False) as http,
        ):
            assert (await http.get("/health")).status_code == 200
            assert (await http.put("/weights/1", content=save({}))).status_code == 503
            probed = await http.get("/health")
            assert probed.status_code == 503 and "half-way" in probed.json()["error"]["message"]
            with pytest.raises(BackendError, match="half-way"):
                await served.wait_ended()

    asyncio.run(scenario())
