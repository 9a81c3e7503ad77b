"""Result lines and the messages in them, in the shapes of Anthropic's API."""

from typing import Any

import msgspec

from batchor_core.simulator.answers import NOTICE, Answer
from batchor_core.simulator.anthropic.wire import error_body, error_type

_encode = msgspec.json.Encoder().encode


def result_line(answer: Answer, number: int, custom_id: str | None = None) -> bytes:
    """Return the line of an answer, perhaps under another id, without its end."""
    record = {"custom_id": custom_id or answer.custom_id, "result": _result(answer, number)}
    for edit in answer.edits:
        edit(record)
    line = _encode(record)
    for found, instead in answer.patches:
        line = line.replace(found, instead, 1)
    return line


def left_over_line(custom_id: str, kind: str) -> bytes:
    """Return the line for a request that an expired or cancelled batch did not come to."""
    return _encode({"custom_id": custom_id, "result": {"type": kind}})


def _result(answer: Answer, number: int) -> dict[str, Any]:
    key = f"{answer.digest.hex()}{number:06x}"
    if answer.status == 200:
        return {"type": "succeeded", "message": _message(answer, key)}
    error = answer.error or {}
    kind = error_type(answer.status, error.get("type"))
    message = error.get("message") or "Simulated failure."
    body = error_body(kind, message, error_code=error.get("code"))
    return {"type": "errored", "error": {**body, "request_id": f"req_{key}"}}


def _message(answer: Answer, key: str) -> dict[str, Any]:
    return {
        "id": f"msg_{key}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [_block(answer, key)],
        "stop_reason": _stop_reason(answer),
        "stop_sequence": None,
        "stop_details": _stop_details(answer),
        "container": None,
        "usage": {
            "input_tokens": answer.input_tokens - answer.cached_tokens - answer.cache_write_tokens,
            "cache_creation_input_tokens": answer.cache_write_tokens,
            "cache_read_input_tokens": answer.cached_tokens,
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"thinking_tokens": 0},
            "server_tool_use": None,
            "service_tier": "batch",
        },
        "simulator": NOTICE,
    }


def _block(answer: Answer, key: str) -> dict[str, Any]:
    if _calls_tool(answer):
        made = msgspec.json.decode(answer.text)
        return {"type": "tool_use", "id": f"toolu_{key}", "name": answer.tool, "input": made}
    return {"type": "text", "text": answer.text, "citations": None}


def _stop_reason(answer: Answer) -> str:
    if answer.refused:
        return "refusal"
    if answer.truncated:
        return "max_tokens"
    return "tool_use" if _calls_tool(answer) else "end_turn"


def _calls_tool(answer: Answer) -> bool:
    """Whether it is a tool call; a fault that spoils its JSON makes it a text."""
    return bool(answer.tool) and not answer.fault and not answer.truncated


def _stop_details(answer: Answer) -> dict[str, Any] | None:
    if not answer.refused:
        return None
    return {"type": "refusal", "category": "general_harms", "explanation": answer.text}
