"""Faults in what a batch looks like. A kind is one function that changes its JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchor_core.simulator.faults import ALL_PROTOCOLS, OPENAI_ONLY, FaultKind, FaultRule

Record = dict[str, Any]

_FILE_IDS = ("output_file_id", "error_file_id")
_ENDED = ("completed", "failed", "expired", "cancelled")
_ERROR_SHAPES: dict[str, Callable[[list[Record]], Any]] = {
    "text": lambda entries: "; ".join(str(entry["message"]) for entry in entries),
    "list": lambda entries: entries,
    "texts": lambda entries: [entry["message"] for entry in entries],
    "null": lambda _: None,
    "null_data": lambda _: {"object": "list", "data": None},
    "empty": lambda _: [],
}


@dataclass(frozen=True, kw_only=True)
class RecordKind(FaultKind):
    """Changes a batch as a call shows it; the batch itself stays as it is.

    `concerns` says which of them it strikes at all; others do not use a rule up.
    """

    scope = "record"
    matches = frozenset({"run", "batch", "endpoint", "route"})
    apply: Callable[[FaultRule, Record], None]
    concerns: Callable[[Record], bool] = lambda _: True


def _empty_ids(_: FaultRule, record: Record) -> None:
    for name in _FILE_IDS:
        record[name] = record[name] or ""


def _names_files(record: Record) -> bool:
    return any(record.get(name) for name in (*_FILE_IDS, "response"))


def _late_files(rule: FaultRule, record: Record) -> None:
    for name in rule["fields"]:
        if name in record:
            record[name] = None
    if "metadata" in record and record.pop("response", None):  # Google's
        record["metadata"] = {k: v for k, v in record["metadata"].items() if k != "output"}


def _stray_ids(rule: FaultRule, record: Record) -> None:
    if record["status"] in _ENDED:
        for name in rule["fields"]:
            record[name] = record[name] or rule["file_id"]


def _null_fields(rule: FaultRule, record: Record) -> None:
    for name in rule["fields"]:
        outer, _, inner = name.partition(".")
        if inner and isinstance(record[outer], dict):
            record[outer] = {**record[outer], inner: None}
        else:
            record[outer] = None


def _odd_status(rule: FaultRule, record: Record) -> None:
    names = ("status", "processing_status", "state")
    holder = record if any(name in record for name in names) else record["metadata"]
    name = next(name for name in names if name in holder)
    word = rule["words"].get(holder[name], holder[name])
    holder[name] = word.upper() if rule["upper"] else word


def _odd_errors(rule: FaultRule, record: Record) -> None:
    if record["status"] == "failed":
        record["errors"] = _ERROR_SHAPES[rule["shape"]](record["errors"]["data"])


def _lying_counts(rule: FaultRule, record: Record) -> None:
    told = record["request_counts"]
    if told is not None:
        lie = {"completed": told["total"], "failed": 0} if "total" in told else {}
        record["request_counts"] = {**told, **lie, **rule["counts"]}


RECORD_KINDS = (
    RecordKind(name="empty_ids", apply=_empty_ids, protocols=OPENAI_ONLY),
    RecordKind(
        name="late_files",
        apply=_late_files,
        concerns=_names_files,
        defaults={"fields": list(_FILE_IDS)},
        protocols=ALL_PROTOCOLS - {"anthropic"},
    ),
    RecordKind(
        name="stray_ids",
        apply=_stray_ids,
        defaults={"fields": ["error_file_id"], "file_id": "file-stray"},
        protocols=OPENAI_ONLY,
    ),
    RecordKind(
        name="null_fields",
        apply=_null_fields,
        defaults={"fields": ["request_counts", "metadata", "endpoint"]},
    ),
    RecordKind(name="odd_status", apply=_odd_status, defaults={"words": {}, "upper": False}),
    RecordKind(
        name="odd_errors",
        apply=_odd_errors,
        defaults={"shape": "text"},
        allowed={"shape": tuple(_ERROR_SHAPES)},
        protocols=OPENAI_ONLY,
    ),
    RecordKind(
        name="lying_counts",
        apply=_lying_counts,
        defaults={"counts": {}},
        protocols=ALL_PROTOCOLS - {"gemini"},
    ),
)
