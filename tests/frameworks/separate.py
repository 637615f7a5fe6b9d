"""Agents of frameworks with an environment of their own, each a process; `make test-frameworks` sets them up.

Not collected by name: without the environments there is nothing to run.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.calculator import ADDED, ANSWER, REPLIES
from tests.frameworks.checker import check_path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".frameworks"


def offline() -> dict[str, str]:
    """What else would be fetched from the net: LiteLLM's prices; tiktoken's vocabularies, which LiteLLM carries."""
    [vocabularies] = ENVIRONMENTS.glob("litellm/lib/*/site-packages/litellm/litellm_core_utils/tokenizers")
    return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "TIKTOKEN_CACHE_DIR": str(vocabularies)}


def run(name: str, *arguments: str) -> str:
    """The last line that the agent prints."""
    python = ENVIRONMENTS / name / "bin" / "python"
    assert python.exists(), f"{python} is missing; run `make test-frameworks`"
    command = [python, HERE / name / "agent.py", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=offline(), check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["camel_ai", "litellm"])
def test_agent_over_chat(serve_session: Any, tools_text: Any, name: str) -> None:
    """Every turn is recorded, on one path of tokens."""
    served = serve_session(tools_text, REPLIES)
    assert run(name, served.openai_url, "DUMMY") == ANSWER
    check_path(served, REPLIES, ADDED)


def test_litellm_over_messages(serve_session: Any, tools_text: Any) -> None:
    """LiteLLM takes the SDK's place and speaks Anthropic's protocol itself."""
    served = serve_session(tools_text, REPLIES)
    assert run("litellm", served.url, "DUMMY", "anthropic/default") == ANSWER
    check_path(served, REPLIES, ADDED)
