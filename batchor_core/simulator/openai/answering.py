"""Answering one request line of the endpoints that a batch may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from batchor_core.simulator.answers import (
    NOTICE,
    Answer,
    AnswerWriter,
    Input,
    request_digest,
)
from batchor_core.simulator.openai.requests import (
    RequestLine,
    content_parts,
    count_tokens,
    input_tokens,
    inputs_of,
    prompt_of,
)
from batchor_core.simulator.openai.wire import error_object
from batchor_core.simulator.schema_values import compile_schema
from batchor_core.simulator.scripted_answers import ScriptError
from batchor_core.simulator.strict_schemas import strict_violation

_DEFAULT_DIMENSIONS = 1536
_MAX_DIMENSIONS = 4096
_MAX_INPUTS = 2_048
_MAX_INPUT_TOKENS = 300_000
_CHAT_PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")
_encode_canonical = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, kw_only=True)
class _Format:
    """A requested output format; `violation` says why the API would refuse it."""

    schema_json: bytes | None = None
    any_json: bool = False
    violation: str | None = None


class OpenAIAnswerer:
    """Turns request lines into answers."""

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer
        self._format = lru_cache(maxsize=64)(_read_format)

    def answer(self, line: RequestLine, created_unix: int) -> Answer:
        """The answer to a line of a validated file; a bad request is an answer with status 400."""
        canonical = _encode_canonical(line.body)
        answer = Answer(
            custom_id=line.custom_id,
            url=line.url,
            prompt=prompt_of(line.url, line.body),
            model=str(line.body.get("model")),
            digest=request_digest(line.url, canonical),
            input_tokens=count_tokens(line.url, line.body, len(canonical)),
            created_unix=created_unix,
        )
        if line.url == "/v1/embeddings":
            self._embed(answer, line.body)
            return answer
        try:
            self._write(answer, line.body)
        except ScriptError as error:
            _refuse(answer, str(error), param="input")
        return answer

    def _write(self, answer: Answer, body: Mapping[str, Any]) -> None:
        chat = answer.url == "/v1/chat/completions"
        if chat and (unknown := _unknown_part(body.get("messages"))):
            supported = ", ".join(f"'{kind}'" for kind in _CHAT_PARTS)
            message = f"Invalid value: '{unknown}'. Supported values are: {supported}."
            _refuse(answer, message, param="messages")
            return
        wanted = body.get("response_format") if chat else _text_format(body)
        found = self._format(_encode_canonical(wanted), chat) if wanted else _Format()
        if found.violation is not None:
            param = "response_format" if chat else "text.format.schema"
            _refuse(answer, found.violation, code="invalid_json_schema", param=param)
            return
        if found.schema_json is not None:
            self._writer.structured(answer, found.schema_json)
        else:
            self._writer.any_json(answer) if found.any_json else self._writer.text(answer)
        limit = _max_tokens(body, chat=chat)
        if limit is not None and answer.output_tokens > limit:
            answer.truncate(limit)

    def _embed(self, answer: Answer, body: Mapping[str, Any]) -> None:
        inputs = inputs_of(body)
        rest = {name: value for name, value in body.items() if name != "input"}
        head = _encode_canonical(rest)
        texts = [_encode_canonical(each) for each in inputs]
        answer.inputs = [
            Input(request_digest(answer.url, head + text), input_tokens(each))
            for text, each in zip(texts, inputs, strict=True)
        ]
        refusal = _embedding_refusal(body, inputs, answer.input_tokens)
        if refusal is not None:
            _refuse(answer, refusal.message, param=refusal.param, code=refusal.code)
            return
        answer.base64 = body.get("encoding_format") == "base64"
        self._writer.embed(answer, texts, body.get("dimensions", _DEFAULT_DIMENSIONS))


class _Refusal(NamedTuple):
    """Why the API refuses a request."""

    message: str
    param: str = "input"
    code: str | None = "invalid_value"


def _embedding_refusal(
    body: Mapping[str, Any], inputs: Sequence[Any], tokens: int
) -> _Refusal | None:
    dimensions = body.get("dimensions", _DEFAULT_DIMENSIONS)
    if not isinstance(dimensions, int) or not 1 <= dimensions <= _MAX_DIMENSIONS:
        return _Refusal(f"Invalid value for 'dimensions' = {dimensions}.", "dimensions")
    encoding = body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        return _Refusal(f"Invalid value: '{encoding}'.", "encoding_format")
    if not all(isinstance(each, (str, list)) and each for each in inputs):
        return _Refusal("'$.input' is invalid. Please check the API reference.", code=None)
    if len(inputs) > _MAX_INPUTS:
        found = f"maximum length {_MAX_INPUTS}, but got an array with length {len(inputs)}"
        return _Refusal(f"Invalid 'input': array too long. Expected an array with {found} instead.")
    if tokens > _MAX_INPUT_TOKENS:
        message = f"Requested {tokens} tokens, max {_MAX_INPUT_TOKENS} tokens per request."
        return _Refusal(message, code="max_tokens_per_request")
    return None


def _unknown_part(messages: object) -> str | None:
    """The type of a part that chat does not know; some are those of the other endpoint."""
    for part in content_parts(messages if isinstance(messages, list) else []):
        if part.get("type") not in _CHAT_PARTS:
            return str(part.get("type"))
    return None


def _text_format(body: Mapping[str, Any]) -> Any:
    text = body.get("text")
    return text.get("format") if isinstance(text, Mapping) else None


def _max_tokens(body: Mapping[str, Any], *, chat: bool) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_output_tokens",)
    for name in names:
        value = body.get(name)
        if isinstance(value, int):
            return value
    return None


def _refuse(
    answer: Answer, message: str, *, param: str, code: str | None = "invalid_value"
) -> None:
    answer.fail(400, error_object(message, code=code, param=param), "bad_request")


def _read_format(format_json: bytes, chat: bool) -> _Format:
    """Read and check a format once; its text is the cache's key."""
    wanted = msgspec.json.decode(format_json)
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind in ("text", "json_object"):
        return _Format(any_json=kind == "json_object")
    if kind != "json_schema":
        return _Format(violation=f"Invalid output format {kind!r}. ({NOTICE})")
    spec = wanted.get("json_schema") if chat else wanted
    if not isinstance(spec, Mapping) or not isinstance(spec.get("schema"), Mapping):
        return _Format(violation="Missing required parameter: 'schema'.")
    schema = spec["schema"]
    try:
        violation = strict_violation(spec.get("name"), schema) if spec.get("strict") else None
        if violation is None:
            compile_schema(schema)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        violation = f"Invalid schema: {error}"
    return _Format(schema_json=msgspec.json.encode(schema), violation=violation)
