"""Answering one request of a batch."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from batchor_core.simulator.answers import Answer, AnswerWriter, estimate_tokens, request_digest
from batchor_core.simulator.gemini.requests import Line, prompt_of, violation_of
from batchor_core.simulator.gemini.schemas import json_schema
from batchor_core.simulator.gemini.wire import field, line_error
from batchor_core.simulator.schema_values import compile_schema
from batchor_core.simulator.scripted_answers import ScriptError

_DEFAULT_DIMENSIONS = 3072
_encode_canonical = msgspec.json.Encoder(order="sorted").encode


class GeminiAnswerer:
    """Turns requests into answers."""

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer
        self._schema = lru_cache(maxsize=64)(_read_schema)

    def answer(self, line: Line, *, model: str, endpoint: str) -> Answer:
        """The answer to a request; a bad one is an answer with status 400."""
        body = {name: value for name, value in line.request.items() if name != "labels"}
        canonical = _encode_canonical(body)
        answer = Answer(
            custom_id=line.key,
            url=endpoint,
            prompt=prompt_of(body),
            model=model,
            digest=request_digest(f"{model}:{endpoint}", canonical),
            input_tokens=estimate_tokens(len(canonical)),
        )
        is_embedding = endpoint == "embedContent"
        violation = violation_of(line.request, is_embedding=is_embedding)
        if violation is not None:
            _refuse(answer, violation)
        elif is_embedding:
            dimensions = field(body, "outputDimensionality") or _DEFAULT_DIMENSIONS
            self._writer.embed(answer, [canonical], int(dimensions))
        else:
            try:
                self._write(answer, body)
            except ScriptError as error:
                _refuse(answer, str(error))
        return answer

    def _write(self, answer: Answer, body: Mapping[str, Any]) -> None:
        config = field(body, "generationConfig")
        plain = field(config, "responseJsonSchema")
        openapi = field(config, "responseSchema")
        schema = plain if plain is not None else openapi
        if schema is None:
            self._writer.text(answer)
        else:
            found, violation = self._schema(msgspec.json.encode(schema), plain is None)
            if violation or field(config, "responseMimeType") != "application/json":
                _refuse(answer, violation or "A schema needs responseMimeType application/json")
                return
            self._writer.structured(answer, found)
        limit = field(config, "maxOutputTokens")
        if isinstance(limit, int) and answer.output_tokens > limit:
            answer.truncate(limit)


def _refuse(answer: Answer, message: str) -> None:
    answer.fail(400, line_error(400, message), "bad_request")


def _read_schema(text: bytes, is_openapi: bool) -> tuple[bytes, str]:
    """Read and check a schema once; its text is the cache's key."""
    schema = msgspec.json.decode(text)
    if is_openapi:
        if "additionalProperties" in schema or "$defs" in schema:
            return b"", "Invalid JSON payload received. Unknown name in 'response_schema'"
        schema = json_schema(schema)
    try:
        compile_schema(schema)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        return b"", f"Invalid schema: {error}"
    return msgspec.json.encode(schema), ""
