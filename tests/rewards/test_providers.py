"""Names of models become addresses and keys."""

from __future__ import annotations

import pytest

from ludus.errors import UserError
from ludus.rewards.providers import NO_KEY, PROVIDERS, Endpoint, find_endpoint, unknown_provider


def test_a_name_is_a_provider_and_its_model() -> None:
    """`openai/o3` is o3 at OpenAI's address, with the key of the environment."""
    found = find_endpoint("openai/o3", environ={"OPENAI_API_KEY": "sk-1"})
    assert found == Endpoint("https://api.openai.com/v1", "o3", "sk-1")
    assert "sk-1" not in repr(found)


def test_only_the_first_part_is_the_provider() -> None:
    """A router's models have slashes in their own names."""
    found = find_endpoint("openrouter/openai/o3", environ={"OPENROUTER_API_KEY": "k"})
    assert found is not None
    assert found.model == "openai/o3"


def test_a_base_url_takes_any_name_and_no_key_of_the_environment() -> None:
    """The key of a provider is not sent to another address."""
    environ = {"OPENAI_API_KEY": "sk-1"}
    assert find_endpoint("my-judge", base_url="http://h:1/v1/", environ=environ) == Endpoint(
        "http://h:1/v1", "my-judge", NO_KEY
    )
    found = find_endpoint("openai/gpt-oss", base_url="http://h:1/v1", environ=environ)
    assert found == Endpoint("http://h:1/v1", "gpt-oss", NO_KEY)
    found = find_endpoint("hosted_vllm/org/name", base_url="http://h:1/v1", api_key="k", environ={})
    assert found == Endpoint("http://h:1/v1", "org/name", "k")


def test_a_key_may_be_given() -> None:
    """It goes before the one of the environment."""
    found = find_endpoint("openai/o3", api_key="mine", environ={"OPENAI_API_KEY": "sk-1"})
    assert found is not None
    assert found.api_key == "mine"


def test_servers_of_ones_own_need_no_key() -> None:
    """Ollama and LM Studio are where they always are."""
    found = find_endpoint("ollama/qwen3", environ={})
    assert found is not None
    assert found.base_url == PROVIDERS["ollama"].base_url


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openai/o3", "set OPENAI_API_KEY in the environment"),
        ("openai/", "names a provider and no model"),
        ("hosted_vllm/qwen", "say where, with base_url"),
    ],
)
def test_what_is_missing_is_named(name: str, said: str) -> None:
    """The key, the model, the address."""
    with pytest.raises(UserError, match=said):
        find_endpoint(name, environ={})


def test_names_of_nobody_are_nobodys() -> None:
    """The error names the nearest provider, and every way out."""
    assert find_endpoint("opneai/o3", environ={}) is None
    assert find_endpoint("o3", environ={}) is None
    assert "did you mean 'openai'?" in str(unknown_provider("opneai/o3"))
    assert "'o3' names no provider. Write" in str(unknown_provider("o3"))
    assert "pip install litellm" in str(unknown_provider("o3"))
