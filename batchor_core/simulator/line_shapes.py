"""Result lines of odd shape: what other hosts of the protocol write, and what no host should.

Unless a kind says so in the ledger (`fault`), the answer in the line is sound.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from batchor_core.simulator.answers import Answer
from batchor_core.simulator.faults import ALL_PROTOCOLS, OPENAI_ONLY, FaultRule
from batchor_core.simulator.line_faults import LineKind

_DEPTH = 100_000
_MEGABYTE = 1024 * 1024
_HARMLESS = (
    (b'"logprobs":[]', b'"logprobs":'),
    (b'"citations":null', b'"citations":'),
    (b'"avgLogprobs":-0.5', b'"avgLogprobs":'),
)
"""Fields, one a protocol, whose value nobody needs; and what stands before the value."""


def _body_as_text(_: FaultRule, answer: Answer) -> None:
    def edit(record: dict[str, Any]) -> None:
        body = record["response"]["body"]
        record["response"]["body"] = msgspec.json.encode(body).decode()

    answer.edits += (edit,)


def _odd_usage(rule: FaultRule, answer: Answer) -> None:
    def edit(record: dict[str, Any]) -> None:
        body = record["result"]["message"] if "result" in record else record["response"]["body"]
        if rule["shape"] == "absent":
            body.pop("usage", None)
        else:
            body["usage"] = {"null": None, "text": "none", "list": [1]}[rule["shape"]]

    answer.edits += (edit,)


def _other_model(rule: FaultRule, answer: Answer) -> None:
    answer.model = rule["model"]


def _wrong_file(_: FaultRule, answer: Answer) -> None:
    answer.misfiled = True


def _wrong_custom_id(rule: FaultRule, answer: Answer) -> None:
    answer.edits += (lambda record: record.update(custom_id=rule["custom_id"]),)
    answer.fault = "wrong_custom_id"


def _foreign_line(rule: FaultRule, answer: Answer) -> None:
    row = answer.custom_id.rpartition("-")[2]
    answer.also_as += (f"{rule['token']}-{row}",)


def _without_response(rule: FaultRule, answer: Answer) -> None:
    def edit(record: dict[str, Any]) -> None:
        if rule["absent"]:
            del record["response"]
        else:
            record["response"] = None
        record["error"] = {"code": rule["code"], "message": rule["message"]}

    answer.fail(0, None, "line_without_response")
    answer.edits += (edit,)


def _failed_body(rule: FaultRule, answer: Answer) -> None:
    def edit(record: dict[str, Any]) -> None:
        body = record["response"]["body"]
        answers = [name for name in ("output", "choices", "data") if name in body]
        body.update({name: [] for name in answers}, usage=None)
        body["error"] = {"code": rule["code"], "message": rule["message"]}
        if "output" in body:
            body["status"] = "failed"

    answer.edits += (edit,)
    answer.billed, answer.fault = False, "failed_body"


def _nul(answer: Answer) -> None:
    answer.say(answer.text.replace("Simulated", "Simu\0lated", 1))


def _surrogate(answer: Answer) -> None:
    answer.patches += ((b"Simulated", b"Simu\\ud800lated"),)


def _nan(answer: Answer) -> None:
    answer.patches += tuple((found, begin + b"NaN") for found, begin in _HARMLESS)


def _invalid_utf8(answer: Answer) -> None:
    answer.patches += ((b"Simulated", b"Simu\xfflated"),)
    answer.billed, answer.fault = False, "invalid_utf8"


def _too_deep(answer: Answer) -> None:
    deep = b"[" * _DEPTH + b"]" * _DEPTH
    answer.patches += tuple((found, begin + deep) for found, begin in _HARMLESS)
    answer.billed, answer.fault = False, "too_deep"


def _big_count(answer: Answer) -> None:
    for name in (b'"input_tokens":', b'"promptTokenCount":'):
        answer.patches += ((name, name + b"1" + b"0" * 400),)


_TEXTS: dict[str, Callable[[Answer], None]] = {
    "nul": _nul,
    "surrogate": _surrogate,
    "nan": _nan,
    "invalid_utf8": _invalid_utf8,
    "too_deep": _too_deep,
    "big_count": _big_count,
}


def _odd_text(rule: FaultRule, answer: Answer) -> None:
    _TEXTS[rule["variant"]](answer)


def _huge_answer(rule: FaultRule, answer: Answer) -> None:
    answer.say(answer.text + "x" * (int(rule["megabytes"]) * _MEGABYTE))


def _huge_line(rule: FaultRule, answer: Answer) -> None:
    answer.raw_before.append(b'{"custom_id":"' + b"x" * (int(rule["megabytes"]) * _MEGABYTE))


def _kind(
    name: str,
    apply: Callable[[FaultRule, Answer], None],
    protocols: frozenset[str] = ALL_PROTOCOLS,
    **defaults: Any,
) -> LineKind:
    return LineKind(name=name, apply=apply, defaults=defaults, protocols=protocols)


LINE_SHAPES = (
    _kind("body_as_text", _body_as_text, OPENAI_ONLY),
    LineKind(
        name="odd_usage",
        apply=_odd_usage,
        defaults={"shape": "absent"},
        allowed={"shape": ("absent", "null", "text", "list")},
        protocols=ALL_PROTOCOLS - {"gemini"},
    ),
    _kind("other_model", _other_model, model="gpt-other"),
    _kind("wrong_file", _wrong_file, OPENAI_ONLY),
    _kind("wrong_custom_id", _wrong_custom_id, custom_id=None),
    _kind("foreign_line", _foreign_line, token="zzzzzzzz"),  # noqa: S106 no secret
    _kind(
        "line_without_response",
        _without_response,
        OPENAI_ONLY,
        code="server_error",
        message="Simulated failure.",
        absent=False,
    ),
    _kind(
        "failed_body",
        _failed_body,
        OPENAI_ONLY,
        code="server_error",
        message="Simulated failure.",
    ),
    LineKind(
        name="odd_text",
        apply=_odd_text,
        defaults={"variant": "nul"},
        allowed={"variant": tuple(_TEXTS)},
    ),
    _kind("huge_answer", _huge_answer, megabytes=20),
    _kind("huge_line", _huge_line, megabytes=20),
)
