"""Checking a whole input file before any of it is executed, as the provider does."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from batchor_core.simulator.openai.requests import (
    REQUIRED_PARAMETER,
    RequestLine,
    count_tokens,
    decode_line,
    input_count,
    raw_lines,
)

_MAX_ERRORS = 100
_encode = msgspec.json.Encoder().encode


@dataclass
class Inspection:
    """What is in an input file, and what is wrong with it."""

    total: int = 0
    inputs: int = 0
    tokens: int = 0
    model: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, code: str, message: str, *, line: int | None = None, param: str | None = None
    ) -> None:
        """Note an error; only the first hundred are told."""
        if len(self.errors) < _MAX_ERRORS:
            self.errors.append({"code": code, "line": line, "message": message, "param": param})


def inspect_file(path: Path, endpoint: str, max_requests: int) -> Inspection:
    """Read an input file once and check every line of it.

    Args:
        path: The file.
        endpoint: What the batch is for.
        max_requests: How many lines it may have; of embeddings also how many inputs in all.
    """
    inspection = Inspection()
    seen: set[str] = set()
    for number, raw in enumerate(raw_lines(path), start=1):
        inspection.total += 1
        if inspection.total > max_requests:
            inspection.add(
                "too_many_tasks", f"The batch has more than {max_requests} requests.", line=number
            )
            break
        try:
            line = decode_line(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            inspection.add("invalid_json_line", _explain(raw), line=number)
            continue
        inspection.tokens += count_tokens(line.url, line.body, len(_encode(line.body)))
        _check_line(inspection, line, number, endpoint)
        inspection.inputs += input_count(line)
        if inspection.inputs > max_requests:
            inspection.add(
                "too_many_tasks", f"The batch has more than {max_requests} inputs.", line=number
            )
            break
        if line.custom_id in seen:
            inspection.add(
                "duplicate_custom_id",
                "The custom_id for this request is a duplicate of another request. The custom_id"
                " parameter must be unique for each request in a batch.",
                line=number,
                param="custom_id",
            )
        seen.add(line.custom_id)
    if inspection.total == 0:
        inspection.add("empty_file", "The input file is empty.")
    return inspection


def _explain(raw: bytes) -> str:
    if not raw.strip():
        return "This line is empty."
    return "This line is not parseable as valid JSON of a request."


def _check_line(inspection: Inspection, line: RequestLine, number: int, endpoint: str) -> None:
    if line.url != endpoint:
        message = "The URL provided for this request does not match the batch endpoint."
        inspection.add("invalid_url", message, line=number, param="url")
        return
    if line.method != "POST":
        message = "The method provided for this request is not supported; use POST."
        inspection.add("invalid_method", message, line=number, param="method")
    for name in ("model", REQUIRED_PARAMETER[endpoint]):
        if not line.body.get(name):
            message = f"Missing required parameter: 'body.{name}'."
            inspection.add("missing_required_parameter", message, line=number, param=f"body.{name}")
    _check_model(inspection, line.body.get("model"), number)


def _check_model(inspection: Inspection, model: object, number: int) -> None:
    if not isinstance(model, str) or not model:
        return
    if inspection.model is None:
        inspection.model = model
    elif model != inspection.model:
        message = (
            f"The provided model '{model}' does not match the model '{inspection.model}' of the"
            " other requests. A batch is for one model."
        )
        inspection.add("mismatched_model", message, line=number, param="body.model")
