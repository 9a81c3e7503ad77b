"""Answering one request of a message batch."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from batchor_core.simulator.answers import Answer, AnswerWriter, estimate_tokens, request_digest
from batchor_core.simulator.anthropic.batches import ENDPOINT
from batchor_core.simulator.anthropic.params import cache_marks, prompt_of, violation
from batchor_core.simulator.anthropic.schema_checks import schema_violation
from batchor_core.simulator.schema_values import compile_schema
from batchor_core.simulator.scripted_answers import ScriptError

_encode_canonical = msgspec.json.Encoder(order="sorted").encode
_encode = msgspec.json.Encoder().encode


class AnthropicAnswerer:
    """Turns requests into answers."""

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer
        self._check = lru_cache(maxsize=64)(_check_schema)

    def answer(self, custom_id: str, params: Any, api_version: str) -> Answer:
        """Return the answer to a request; a bad one is an answer with status 400."""
        canonical = _encode_canonical(params)
        refused = violation(params, api_version)
        answer = Answer(
            custom_id=custom_id,
            url=ENDPOINT,
            prompt="" if refused else prompt_of(params),
            model=str(params.get("model")),
            digest=request_digest(ENDPOINT, canonical),
            input_tokens=estimate_tokens(len(canonical)),
        )
        if refused is not None:
            _refuse(answer, refused)
            return answer
        try:
            self._write(answer, params)
        except ScriptError as error:
            _refuse(answer, str(error))
        return answer

    def _write(self, answer: Answer, params: Mapping[str, Any]) -> None:
        tool = _forced_tool(params)
        wanted = _format(params)
        if tool is not None:
            answer.tool = str(tool.get("name"))
            self._writer.structured(answer, _encode(tool.get("input_schema") or {}))
        elif wanted is not None:
            schema_json = _encode(wanted.get("schema"))
            refused = self._check(schema_json)
            if wanted.get("type") != "json_schema" or refused is not None:
                _refuse(answer, refused or "output_config.format.type: should be 'json_schema'")
                return
            self._writer.structured(answer, schema_json)
        else:
            self._writer.text(answer)
        marked = next(reversed(list(cache_marks(params))), None)
        if marked is not None:
            answer.cache_prefix = _encode([params.get("system"), marked])
        if answer.output_tokens > params["max_tokens"]:
            answer.truncate(params["max_tokens"])


def _format(params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config = params.get("output_config")
    wanted = config.get("format") if isinstance(config, Mapping) else None
    return wanted if isinstance(wanted, Mapping) else None


def _forced_tool(params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the tool that the model has to call; it calls none of its own accord."""
    choice, tools = params.get("tool_choice"), params.get("tools")
    if not isinstance(choice, Mapping) or not isinstance(tools, list):
        return None
    named = [tool for tool in tools if isinstance(tool, Mapping)]
    if choice.get("type") == "any":
        return named[0] if named else None
    return next((tool for tool in named if tool.get("name") == choice.get("name")), None)


def _refuse(answer: Answer, message: str) -> None:
    error = {"type": "invalid_request_error", "message": message}
    answer.fail(400, error, "bad_request")


def _check_schema(schema_json: bytes) -> str | None:
    """Check a schema once; its text is the cache's key."""
    schema = msgspec.json.decode(schema_json)
    if not isinstance(schema, Mapping):
        return "output_config.format.schema: Field required"
    try:
        refused = schema_violation(schema)
        if refused is None:
            compile_schema(schema)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        return f"output_config.format.schema: {error}"
    return refused
