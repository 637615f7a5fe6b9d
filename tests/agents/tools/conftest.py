"""Async tests of tools run on asyncio, as agents do."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
