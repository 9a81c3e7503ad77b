"""What all providers' configurations have in common."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError
from pydantic import model_validator as validates

from batchor_core.errors import ConfigurationError


class ProviderConfigModel(BaseModel):
    """Base of what a user says about a provider: frozen, and strict about names.

    Raises:
        ConfigurationError: Something in it cannot work: one line that names every field. The
            values are not in it, since a key may stand in the wrong field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @validates(mode="wrap")
    @classmethod
    def _in_one_line(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as exc:
            problems = "; ".join(_problem(error) for error in exc.errors(include_input=False))
            raise ConfigurationError(f"{cls.__name__}: {problems}") from None


def _problem(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    what = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
