"""What users say about Anthropic, and what is refused before it costs anything."""

import pickle
from typing import Any

import pytest
from pydantic import SecretStr

from batchor_core.errors import ConfigurationError, MissingCredentialsError
from batchor_core.providers.anthropic import AnthropicProviderConfig
from batchor_core.providers.anthropic.adapter import AnthropicProvider
from batchor_core.providers.registry import connect, connect_without_key

SECRET = "sk-ant-config-0123456789"


def config(**fields: Any) -> AnthropicProviderConfig:
    """Make a configuration that differs in what a test names."""
    return AnthropicProviderConfig(**{"model": "claude-test", "max_tokens": 64, **fields})


def provider(**fields: Any) -> AnthropicProvider:
    """Make an adapter that is closed again."""
    made = AnthropicProvider(config(**fields))
    made.close()
    return made


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
@pytest.mark.parametrize("api_version", [None, "2026-10-21"])
def test_sampling_needs_the_old_version(name: str, api_version: str | None) -> None:
    """All rows would fail, hours later, for a parameter that the API version refuses."""
    with pytest.raises(ConfigurationError, match=f'{name}.*api_version="2023-06-01"'):
        config(message_params={name: 0}, api_version=api_version)
    old = config(message_params={name: 0}, api_version="2023-06-01")
    assert old.answer_fields["api_version"] == "2023-06-01"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"message_params": {"system": "s"}}, "system"),
        ({"message_params": {"output_config": {}}}, "output_config"),
        ({"message_params": {"x": float("nan")}}, "message_params"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"api_version": "latest"}, "api_version"),
        ({"effort": "huge"}, "effort"),
        ({"prompt_cache": "2h"}, "prompt_cache"),
        ({"base_url": "https://me:pw@e.org"}, "base_url"),
        ({"maxtokens": 1}, "maxtokens"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], named: str) -> None:
    """A mistake would show only after a batch has ended."""
    with pytest.raises(ConfigurationError, match=named):
        config(**fields)


def test_max_tokens_has_no_default() -> None:
    """Every request would be refused, since Anthropic wants a bound."""
    with pytest.raises(ConfigurationError, match="max_tokens"):
        AnthropicProviderConfig(model="claude-test")  # type: ignore[call-arg]  # as users do


def test_the_key_is_not_stored() -> None:
    """The key would be written to the database with the job."""
    made = config(api_key=SecretStr(SECRET))
    assert SECRET not in made.model_dump_json() + repr(made) + str(made.answer_fields)


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A rehydrated run would have no key."""
    with pytest.raises(MissingCredentialsError, match="ANTHROPIC_API_KEY") as caught:
        provider()
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    monkeypatch.setenv(name, SECRET)
    assert provider().credential == provider(api_key=SecretStr(SECRET)).credential


@pytest.mark.parametrize("key", ["", "  ", f"{SECRET}\n", f" {SECRET}", "schlüssel"])
def test_a_key_that_is_none(key: str) -> None:
    """A pasted line break would end in an error that shows the key, or in none that helps."""
    with pytest.raises(MissingCredentialsError) as caught:
        provider(api_key=SecretStr(key))
    assert not key.strip() or key.strip() not in str(caught.value)


def test_accounts_and_scopes() -> None:
    """Runs of two workspaces would be taken for one account, or one account for two."""
    key = SecretStr(SECRET)
    bare = provider(api_key=key, base_url="https://e.org:8443/anthropic")
    inside = provider(api_key=key, base_url="https://e.org:8443/anthropic", workspace="wrk_1")
    assert bare.host == inside.host == "e.org:8443"
    assert bare.account != inside.account
    assert bare.scope == "anthropic:e.org:8443::claude-test"
    assert inside.scope == "anthropic:e.org:8443:wrk_1:claude-test"
    assert provider(api_key=key, quota_scope="mine").scope == "mine"
    assert provider(api_key=key).host == "api.anthropic.com"


def test_it_is_found_by_its_configuration() -> None:
    """Nobody could use it."""
    for made in (connect(config(api_key=SecretStr(SECRET))), connect_without_key(config())):
        assert isinstance(made, AnthropicProvider)
        made.close()


def test_what_a_cache_costs() -> None:
    """Costs of an hour's cache would be told too low."""
    factors = [config(prompt_cache=each).cache_write_factor for each in (None, "5m", "1h")]
    assert factors == [None, None, 2.0]
