"""The SDK's client of a configuration."""

from typing import TYPE_CHECKING

from batchor_core.errors import MissingCredentialsError
from batchor_core.providers.anthropic.config import AnthropicProviderConfig

if TYPE_CHECKING:
    from anthropic import Anthropic
    from httpx2 import Client

_NO_KEY = (
    "no Anthropic key: set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, or pass api_key to "
    "AnthropicProviderConfig"
)


def open_client(
    config: AnthropicProviderConfig, http_client: "Client | None" = None
) -> "Anthropic":
    """Return a client that repeats no call by itself.

    Args:
        config: The account.
        http_client: What it sends with; default: the SDK's own choice.

    Raises:
        MissingCredentialsError: There is no key, or it cannot be a header's value.
    """
    import anthropic  # noqa: PLC0415 - a second that a run on another provider need not pay

    headers = {
        "anthropic-version": config.api_version,
        "anthropic-workspace-id": config.workspace,
    }
    client = anthropic.Anthropic(
        api_key=config.api_key.get_secret_value() if config.api_key else None,
        base_url=config.base_url,
        timeout=config.timeout_s,
        max_retries=0,  # the SDK would re-POST a create after a dropped connection
        default_headers={name: value for name, value in headers.items() if value},
        http_client=http_client,
    )
    _check_key(key_of(client))
    return client


def key_of(client: "Anthropic") -> str:
    """Return what a client shows to the provider, or an empty text."""
    return client.api_key or client.auth_token or ""


def _check_key(key: str) -> None:
    if not key.strip():
        raise MissingCredentialsError(_NO_KEY)
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise MissingCredentialsError(
            "the Anthropic key has characters that no key has (spaces or a line break around it?)"
        )
