"""Faults of single result lines. A kind is one function that changes the answer.

What is wrong with the shape of a line alone is in `line_shapes`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from batchor_core.simulator.answers import Answer
from batchor_core.simulator.faults import OPENAI_ONLY, FaultKind, FaultRule

_LINE_MATCHES = frozenset({"prompt", "custom_id", "run", "batch", "endpoint"})

BAD_LINES = {
    "invalid_utf8": b'{"id":"batch_req_bad","custom_id":"\xff\xfe"}',
    "blank": b"",
    "non_object": b'["not","an","object"]',
    "null": b"null",
    "truncated": b'{"id":"batch_req_bad","custom_id":"x","response":{"status',
    "nan": b'{"id":"batch_req_bad","custom_id":NaN}',
    "lone_surrogate": b'{"id":"batch_req_bad","custom_id":"\\ud800"}',
    "nul": b"\x00\x00",
}


@dataclass(frozen=True, kw_only=True)
class LineKind(FaultKind):
    """Changes the answer to one request."""

    scope = "line"
    matches = _LINE_MATCHES
    apply: Callable[[FaultRule, Answer], None]


def _line_error(rule: FaultRule, answer: Answer) -> None:
    error = {name: rule[name] for name in ("message", "type", "code")}
    answer.fail(int(rule["status"]), {**error, "param": None}, "line_error")


def _line_status_zero(_: FaultRule, answer: Answer) -> None:
    answer.fail(0, None, "line_status_zero")


def _missing_line(_: FaultRule, answer: Answer) -> None:
    # Not counted as billed: nobody can tell, and to ask again is right.
    answer.copies, answer.billed, answer.fault = 0, False, "missing_line"


def _duplicate_line(rule: FaultRule, answer: Answer) -> None:
    answer.copies = int(rule["copies"])


def _unknown_line(rule: FaultRule, answer: Answer) -> None:
    foreign = {
        "id": "batch_req_unknown",
        "custom_id": rule["custom_id"],
        "response": {"status_code": 200, "request_id": "req_unknown", "body": {}},
        "error": None,
    }
    answer.raw_before.append(msgspec.json.encode(foreign))


def _invalid_json_answer(_: FaultRule, answer: Answer) -> None:
    answer.say(answer.text[: len(answer.text) // 2])
    answer.fault = "invalid_json_answer"


def _refusal(rule: FaultRule, answer: Answer) -> None:
    answer.say(rule["text"])
    answer.refused, answer.fault = True, "refusal"


def _incomplete(rule: FaultRule, answer: Answer) -> None:
    answer.truncate(int(rule["tokens"]))
    answer.fault = "incomplete"


def _bad_line(rule: FaultRule, answer: Answer) -> None:
    if rule["variant"] == "u2028":
        # Valid JSON inside a string, but careless readers take both for the end of a line.
        answer.say(answer.text.replace("Simulated ", "Simulated\u2028\u0085", 1))
        return
    raw = (
        str(rule["raw"]).encode("latin-1", "replace")
        if rule["raw"] is not None
        else BAD_LINES[rule["variant"]]
    )
    if rule["instead"]:
        answer.raw_instead, answer.billed, answer.fault = raw, False, "bad_line"
    else:
        answer.raw_before.append(raw)


def _kind(name: str, apply: Callable[[FaultRule, Answer], None], **defaults: Any) -> LineKind:
    return LineKind(name=name, apply=apply, defaults=defaults)


LINE_KINDS = (
    _kind(
        "line_error", _line_error, status=500, message="Simulated failure.", type=None, code=None
    ),
    LineKind(name="line_status_zero", apply=_line_status_zero, protocols=OPENAI_ONLY),
    _kind("missing_line", _missing_line),
    _kind("duplicate_line", _duplicate_line, copies=2),
    _kind("unknown_line", _unknown_line, custom_id="foreign-0"),
    _kind("invalid_json_answer", _invalid_json_answer),
    _kind("refusal", _refusal, text="I'm sorry, I cannot help with that."),
    _kind("incomplete", _incomplete, tokens=3),
    LineKind(
        name="bad_line",
        apply=_bad_line,
        defaults={"variant": "invalid_utf8", "raw": None, "instead": False},
        allowed={"variant": (*BAD_LINES, "u2028")},
    ),
)
