"""What all providers' configurations have in common."""

import json
from abc import abstractmethod
from collections.abc import Mapping, Set
from typing import Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_core import core_schema

from batchor_core.errors import ConfigurationError


class ProviderConfigModel(BaseModel):
    """Base of what a user says about a provider: frozen, and strict about names.

    Raises:
        ConfigurationError: Something in it cannot work: one line that names every field. The
            values are not in it, since a key may stand in the wrong field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Wrap the whole: a model validator would leave out those of subclasses."""
        return core_schema.no_info_wrap_validator_function(cls._in_one_line, handler(source))

    @classmethod
    def _in_one_line(cls, data: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(data)
        except ValidationError as exc:
            problems = "; ".join(_problem(error) for error in exc.errors(include_input=False))
            raise ConfigurationError(f"{cls.__name__}: {problems}") from None


class EnqueueLimitConfig(ProviderConfigModel):
    """How much may be enqueued for one model of one account at once.

    Attributes:
        max_tokens: Enqueued input tokens; see the limits page of the account.
        max_requests: Enqueued requests.
        max_batches: Provider batches at work.
    """

    max_tokens: PositiveInt | None = None
    max_requests: PositiveInt | None = None
    max_batches: PositiveInt | None = None


class TokenPrice(ProviderConfigModel):
    """Real-time prices of a model, in US dollars per million tokens, in place of the known ones.

    Attributes:
        input_usd: Of input tokens.
        output_usd: Of output tokens, reasoning included.
        cached_input_usd: Of input tokens read from a cache; default: as other input.
        cache_write_usd: Of input tokens written to a cache; default: as other input.
        batch_discount: Share that batch mode takes off, 0 to 1.
    """

    input_usd: float = Field(ge=0)
    output_usd: float = Field(ge=0)
    cached_input_usd: float | None = Field(default=None, ge=0)
    cache_write_usd: float | None = Field(default=None, ge=0)
    batch_discount: float = Field(default=0.5, ge=0, le=1)


class BaseProviderConfig(ProviderConfigModel):
    """What a user says about any provider: model, account, limits.

    Attributes:
        model: As the provider spells it.
        api_key: Else the SDK reads its own environment variable. Never stored.
        enqueue_limit: Limits of the account's queue, shared by all runs of ``quota_scope``.
        quota_scope: Runs that share the queue's limits; default: host, account and model.
        credentials: A name by which the program that drives the run finds the key again (in
            Dagster the resource's key). Stored, and part of the account's name: give each of
            several accounts at one host its own.
        timeout_s: Time-out of one call other than creating a batch, in seconds.
        price: What tokens cost; default: what ``genai-prices`` knows.
    """

    provider: str
    model: str = Field(min_length=1)
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    enqueue_limit: EnqueueLimitConfig = EnqueueLimitConfig()
    quota_scope: str | None = None
    credentials: str | None = None
    timeout_s: PositiveFloat = 120.0
    price: TokenPrice | None = None

    @property
    @abstractmethod
    def endpoint_name(self) -> str:
        """What is asked for, as ``responses``; part of every request key."""

    @property
    @abstractmethod
    def output_token_bound(self) -> int | None:
        """The most output tokens that one request can cost; None if unbounded."""

    @property
    @abstractmethod
    def answer_fields(self) -> dict[str, Any]:
        """All fields here that change an answer, but for model and endpoint, as JSON values."""

    @property
    def cache_write_factor(self) -> float | None:
        """What writing to a cache costs, as a multiple of other input; None: as is known."""
        return None

    @property
    def embedding_dimensions(self) -> int | None:
        """Length of the vectors that are asked for; None where answers are texts."""
        return None


def checked_params(params: Mapping[str, Any], owned: Set[str], fields: str) -> dict[str, Any]:
    """Return parameters of a request's body, if they are JSON and none of ours.

    Args:
        params: What the user gave.
        owned: Names that the job or another field decides.
        fields: Of which fields the user should think instead, for the message.

    Raises:
        ValueError: They cannot be sent.
    """
    taken = sorted(owned & params.keys())
    if taken:
        raise ValueError(
            f"{', '.join(taken)}: set by the job itself (prompt, system prompt, output model) "
            f"or by a field of its own ({fields})"
        )
    try:
        json.dumps(dict(params), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            "not JSON: give texts, finite numbers, booleans, null, lists and mappings only"
        ) from None
    return dict(params)


class HostedProviderConfig(BaseProviderConfig):
    """A provider that other hosts stand in for.

    Attributes:
        base_url: Else the SDK reads its own environment variable; any host that speaks the
            protocol.
    """

    base_url: str | None = None

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, base_url: str | None) -> str | None:
        if base_url is None:
            return None
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give an absolute URL, as https://host/v1")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "the URL is stored: it may hold no credentials and no query; use api_key"
            )
        return base_url


def _problem(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    what = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
