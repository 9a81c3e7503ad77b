"""Result lines and the response bodies in them, in the shapes of the OpenAI API."""

import base64
from array import array
from typing import Any

import msgspec

from batchor_core.simulator.answers import NOTICE, Answer

_encode = msgspec.json.Encoder().encode
_ERROR_TYPES = {400: "invalid_request_error", 401: "invalid_request_error", 429: "rate_limit_error"}
_OVER = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This batch was cancelled before this request could be executed.",
}


def result_line(answer: Answer, number: int, custom_id: str | None = None) -> bytes:
    """The line of a result file for an answer, perhaps under another id, without its end."""
    key = f"{answer.digest.hex()}{number:06x}"
    if answer.status == 200:
        body = _BODIES[answer.url](answer, key)
    else:
        body = {} if answer.error is None else {"error": _error(answer.status, answer.error)}
    response = {
        "status_code": answer.status,
        "request_id": f"req_{key}" if answer.status else "",
        "body": body,
    }
    record = {
        "id": f"batch_req_{key}",
        "custom_id": custom_id or answer.custom_id,
        "response": response,
        "error": None,
    }
    for edit in answer.edits:
        edit(record)
    line = _encode(record)
    for found, instead in answer.patches:
        line = line.replace(found, instead, 1)
    return line


def _error(status: int, error: dict[str, Any]) -> dict[str, Any]:
    return {**error, "type": error["type"] or _ERROR_TYPES.get(status, "server_error")}


def left_over_line(custom_id: str, code: str, number: int) -> bytes:
    """The line for a request that an expired or cancelled batch did not come to."""
    error = {"code": code, "message": _OVER[code]}
    return _encode(
        {
            "id": f"batch_req_left{number:06x}",
            "custom_id": custom_id,
            "response": None,
            "error": error,
        }
    )


def _response(answer: Answer, key: str) -> dict[str, Any]:
    part: dict[str, Any]
    if answer.refused:
        part = {"type": "refusal", "refusal": answer.text}
    else:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
    status = "incomplete" if answer.truncated else "completed"
    return {
        "id": f"resp_{key}",
        "object": "response",
        "created_at": answer.created_unix,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if answer.truncated else None,
        "instructions": None,
        "max_output_tokens": None,
        "model": answer.model,
        "output": [
            {
                "id": f"msg_{key}",
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": [part],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        },
        "metadata": {"simulator": NOTICE},
    }


def _chat_completion(answer: Answer, key: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if answer.refused else answer.text,
        "refusal": answer.text if answer.refused else None,
        "annotations": [],
    }
    return {
        "id": f"chatcmpl-{key}",
        "object": "chat.completion",
        "created": answer.created_unix,
        "model": answer.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "length" if answer.truncated else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": answer.input_tokens,
            "completion_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "system_fingerprint": f"simulator: {NOTICE}",
    }


def _embeddings(answer: Answer, _: str) -> dict[str, Any]:
    vectors = answer.vectors or []
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _as_base64(vector) if answer.base64 else vector,
            }
            for index, vector in enumerate(vectors)
        ],
        "model": answer.model,
        "usage": {"prompt_tokens": answer.input_tokens, "total_tokens": answer.input_tokens},
    }


def _as_base64(vector: list[float]) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()


_BODIES = {
    "/v1/responses": _response,
    "/v1/chat/completions": _chat_completion,
    "/v1/embeddings": _embeddings,
}
