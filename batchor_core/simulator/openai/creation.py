"""What the API checks at once when a batch is created."""

from collections.abc import Mapping
from typing import Any

from batchor_core.simulator.openai.files import checked_expiry_s
from batchor_core.simulator.openai.wire import ENDPOINTS, WireError

_MAX_PAIRS = 16
_MAX_KEY_CHARS = 64
_MAX_VALUE_CHARS = 512


def check_creation(request: Any) -> dict[str, Any]:
    """The request to create a batch, if it is well formed.

    Raises:
        WireError: With status 400 and the parameter that is wrong.
    """
    if not isinstance(request, dict):
        raise WireError(400, "We could not parse the JSON body of your request.")
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(request.get(name), str) or not request[name]:
            message = f"Missing required parameter: '{name}'."
            raise WireError(400, message, code="missing_required_parameter", param=name)
    if request["endpoint"] not in ENDPOINTS:
        raise _invalid_value("endpoint", request["endpoint"], ENDPOINTS)
    if request["completion_window"] != "24h":
        raise _invalid_value("completion_window", request["completion_window"], ("24h",))
    _check_metadata(request.get("metadata"))
    expiry = request.get("output_expires_after")
    if expiry is not None:
        seconds = expiry.get("seconds") if isinstance(expiry, Mapping) else None
        checked_expiry_s(seconds, "output_expires_after")
    return request


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise WireError(400, "Metadata must map strings to strings.", param="metadata")
    too_long = any(
        len(key) > _MAX_KEY_CHARS or len(value) > _MAX_VALUE_CHARS
        for key, value in metadata.items()
    )
    if len(metadata) > _MAX_PAIRS or too_long:
        message = (
            f"Metadata may hold {_MAX_PAIRS} pairs with keys of {_MAX_KEY_CHARS} and values of"
            f" {_MAX_VALUE_CHARS} characters at most."
        )
        raise WireError(400, message, param="metadata")


def _invalid_value(name: str, value: str, supported: tuple[str, ...]) -> WireError:
    listed = ", ".join(f"'{one}'" for one in supported)
    message = f"Invalid value: '{value}'. Supported values are: {listed}."
    return WireError(400, message, code="invalid_value", param=name)
