"""Result lines of both backends, and the responses in them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from batchor_core.simulator.answers import Answer
from batchor_core.simulator.gemini.wire import line_error, status_name

_encode = msgspec.json.Encoder().encode


def developer_line(answer: Answer, custom_id: str | None = None) -> bytes:
    """The line of a result file for an answer, perhaps under another key, without its end."""
    record = _edited(answer, custom_id, developer_entry(answer))
    return _patched(answer, _encode({"key": record.pop("custom_id"), **record}))


def inlined_entry(answer: Answer, custom_id: str | None = None) -> dict[str, Any]:
    """An answer as an operation holds it; without a key if the request had none."""
    record = _edited(answer, custom_id, developer_entry(answer))
    key = record.pop("custom_id")
    return {**record, **({"metadata": {"key": key}} if key else {})}


def vertex_line(
    answer: Answer, request: Mapping[str, Any], at: str, custom_id: str | None = None
) -> bytes:
    """The line of a result file of Vertex AI, which repeats the request, without its end."""
    is_ok = answer.status == 200
    record = _edited(answer, custom_id, {})
    labels = {**(request.get("labels") or {}), "custom_id": record["custom_id"]}
    message = str((answer.error or {}).get("message", ""))
    said = status_name(answer.status).replace("_", " ").title()
    line = {
        "status": "" if is_ok else f"{said}: {answer.status} {message}",
        "processed_time": at,
        "request": {**request, "labels": labels},
        "response": _response(answer) if is_ok else {},
    }
    return _patched(answer, _encode(line))


def developer_entry(answer: Answer) -> dict[str, Any]:
    """What became of a request: a response, or an error."""
    if answer.status == 200:
        return {"response": _embedding(answer) if answer.vectors else _response(answer)}
    told = answer.error or {}
    # A rule's error has OpenAI's shape; ours has a number as code.
    if not isinstance(told.get("code"), int):
        told = line_error(answer.status, str(told.get("message", "")))
    return {"error": told}


def _edited(answer: Answer, custom_id: str | None, record: dict[str, Any]) -> dict[str, Any]:
    named = {"custom_id": custom_id or answer.custom_id, **record}
    for edit in answer.edits:
        edit(named)
    return named


def _patched(answer: Answer, line: bytes) -> bytes:
    for found, instead in answer.patches:
        line = line.replace(found, instead, 1)
    return line


def _response(answer: Answer) -> dict[str, Any]:
    finish = "MAX_TOKENS" if answer.truncated else "STOP"
    candidate: dict[str, Any] = {"index": 0, "avgLogprobs": -0.5}
    if answer.refused:
        candidate |= {"finishReason": "SAFETY", "finishMessage": answer.text}
    else:
        content = {"parts": [{"text": answer.text}], "role": "model"}
        candidate |= {"content": content, "finishReason": finish}
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": answer.input_tokens,
            "candidatesTokenCount": answer.output_tokens,
            "totalTokenCount": answer.input_tokens + answer.output_tokens,
        },
        "modelVersion": answer.model,
        "responseId": answer.digest.hex(),
    }


def _embedding(answer: Answer) -> dict[str, Any]:
    (vector,) = answer.vectors or [[]]
    return {"embedding": {"values": vector}, "tokenCount": str(answer.input_tokens)}
