"""The SDK's client of a configuration: OpenAI's own, or Azure's with its ``api-version``."""

import os
from typing import TYPE_CHECKING

from batchor_core.errors import MissingCredentialsError
from batchor_core.providers.openai.config import OpenAIProviderConfig

if TYPE_CHECKING:
    from httpx2 import Client
    from openai import OpenAI

_KEY = "OPENAI_API_KEY"
_AZURE_KEY = "AZURE_OPENAI_API_KEY"


def open_client(config: OpenAIProviderConfig, http_client: "Client | None" = None) -> "OpenAI":
    """Return a client that repeats no call by itself.

    Args:
        config: The account.
        http_client: What it sends with; default: the SDK's own choice.

    Raises:
        MissingCredentialsError: There is no key, or it cannot be a header's value.
    """
    import openai  # noqa: PLC0415 - half a second that a run on another provider need not pay

    key = config.api_key.get_secret_value() if config.api_key else None
    # The SDK would re-POST a create after a dropped connection.
    retries = 0
    try:
        if config.api_version:
            client: openai.OpenAI = openai.AzureOpenAI(
                # Given, so that the SDK takes no other credential of Azure's from elsewhere.
                api_key=key if key is not None else os.environ.get(_AZURE_KEY, ""),
                azure_endpoint=config.base_url or "",
                api_version=config.api_version,
                timeout=config.timeout_s,
                max_retries=retries,
                http_client=http_client,
            )
        else:
            client = openai.OpenAI(
                api_key=key,
                base_url=config.base_url,
                organization=config.organization,
                project=config.project,
                timeout=config.timeout_s,
                max_retries=retries,
                http_client=http_client,
            )
    except openai.OpenAIError as exc:
        raise _missing_key(config) from exc
    _check_key(client.api_key, config)
    return client


def _check_key(key: str, config: OpenAIProviderConfig) -> None:
    if not key.strip():  # an admin key alone makes a client, too
        raise _missing_key(config)
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise MissingCredentialsError(
            "the OpenAI key has characters that no key has (spaces or a line break around it?)"
        )


def _missing_key(config: OpenAIProviderConfig) -> MissingCredentialsError:
    variable = _AZURE_KEY if config.api_version else _KEY
    return MissingCredentialsError(
        f"no OpenAI key: set {variable}, or pass api_key to OpenAIProviderConfig"
    )
