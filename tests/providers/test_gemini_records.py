"""Google's batches in our words, in all the shapes that were seen of them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import FaultKind
from batchor_core.providers.gemini.records import (
    developer_batch,
    inlined_responses,
    operations_of,
    vertex_batch,
)
from batchor_core.providers.gemini.wire import camel, field, instant_of
from batchor_core.providers.protocol import BatchPhase, ProviderBatch
from batchor_core.providers.wire import UnusableAnswerError

INLINED = {"inlinedResponses": {"inlinedResponses": [{"response": {"x": 1}}]}}


def operation(state: str, **more: Any) -> dict[str, Any]:
    """Return an operation; ``error``, ``response`` and ``done`` stand beside its metadata."""
    outside = {key: more.pop(key) for key in ("error", "response", "done") if key in more}
    return {"name": "batches/1", "metadata": {"state": state, **more}, **outside}


def job(state: str, **more: Any) -> dict[str, Any]:
    """Return a job."""
    return {"name": "projects/p/locations/l/batchPredictionJobs/1", "state": state, **more}


def test_a_batch_at_work() -> None:
    """Polling would lose what tells a batch apart."""
    record = operation(
        "BATCH_STATE_RUNNING",
        displayName="run/0-token/sub",
        inputConfig={"fileName": "files/a"},
        createTime="2026-01-02T03:04:05.123456789Z",
        batchStats={"requestCount": "3", "successfulRequestCount": "1", "x": "y"},
    )
    assert developer_batch(record) == ProviderBatch(
        batch_id="batches/1",
        phase=BatchPhase.WORKING,
        status="running",
        key="run/0-token/sub",
        upload_ref="files/a",
        created_at=datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
        counts={"total": 3, "completed": 1},
        executed=1,
        result={},
    )


def test_snake_case() -> None:
    """A batch in protobuf's other spelling would have no name and no results."""
    record = {
        "name": "batches/1",
        "metadata": {
            "state": "BATCH_STATE_SUCCEEDED",
            "display_name": "k",
            "input_config": {"file_name": "files/a"},
            "output": {"responses_file": "files/batch-1"},
        },
    }
    batch = developer_batch(record)
    assert (batch.key, batch.upload_ref) == ("k", "files/a")
    assert batch.result == {"responses_file": "files/batch-1"}


@pytest.mark.parametrize("state", ["BATCH_STATE_X", "JOB_STATE_X", "X"])
@pytest.mark.parametrize(
    ("word", "phase", "is_partial"),
    [
        ("PENDING", BatchPhase.WORKING, False),
        ("QUEUED", BatchPhase.WORKING, False),
        ("CANCELLING", BatchPhase.WORKING, False),
        ("UNSPECIFIED", BatchPhase.WORKING, False),
        ("SUCCEEDED", BatchPhase.ENDED, False),
        ("PARTIALLY_SUCCEEDED", BatchPhase.ENDED, True),
        ("CANCELLED", BatchPhase.ENDED, True),
        ("EXPIRED", BatchPhase.ENDED, True),
        ("FAILED", BatchPhase.ENDED, True),
    ],
)
def test_states(state: str, word: str, phase: BatchPhase, is_partial: bool) -> None:
    """A batch would be waited for after its end (facts 0.4), or be read before it."""
    output = {"responsesFile": "files/batch-1"}
    batch = developer_batch(operation(state.replace("X", word), output=output))
    assert (batch.phase, batch.status, batch.is_partial) == (phase, word.lower(), is_partial)


def test_a_failed_batch_without_results_was_rejected() -> None:
    """Nothing of it ran: its rows would use up their attempts."""
    error = {"code": 8, "message": "quota", "details": [{"@type": "x"}]}
    batch = developer_batch(operation("BATCH_STATE_FAILED", error=error))
    assert batch.phase is BatchPhase.REJECTED
    assert batch.fault is not None
    assert (batch.fault.kind, batch.fault.message) == (FaultKind.CAPACITY, "quota")
    inside = developer_batch(
        operation("FAILED") | {"metadata": {"state": "FAILED", "error": error}}
    )
    assert inside.fault == batch.fault


@pytest.mark.parametrize("state", ["PARTIALLY_SUCCEEDED", "SUCCEEDED"])
def test_results_that_are_late_are_no_rest(state: str) -> None:
    """All rows of a batch whose file is named late would be sent and paid again."""
    batch = developer_batch(operation(state))
    assert (batch.phase, batch.is_partial, batch.result) == (BatchPhase.ENDED, False, {})


def test_done_counts_where_the_state_is_unknown() -> None:
    """A batch whose state has a new name would be waited for for ever."""
    error = {"code": 13}
    done = developer_batch(operation("NEW", done=True, response={"responsesFile": "files/b"}))
    assert (done.phase, done.result) == (BatchPhase.ENDED, {"responses_file": "files/b"})
    failed = developer_batch(operation("NEW", done=True, error=error))
    assert failed.phase is BatchPhase.REJECTED
    assert failed.fault is not None
    assert developer_batch(operation("NEW")).phase is BatchPhase.WORKING


@pytest.mark.parametrize(
    "output",
    [
        INLINED,
        {"inlined_responses": {"inlined_responses": [{"response": {"x": 1}}]}},
        {"inlinedResponses": [{"response": {"x": 1}}]},
        {"inlinedEmbedContentResponses": {"inlinedResponses": [{"response": {"x": 1}}]}},
        {
            "inlinedEmbedContentResponses": {
                "inlinedEmbedContentResponses": [{"response": {"x": 1}}]
            }
        },
    ],
)
@pytest.mark.parametrize("place", ["output", "response"])
def test_answers_that_a_batch_holds(output: dict[str, Any], place: str) -> None:
    """Answers would be lost because they stand under another name."""
    record = operation("SUCCEEDED", **{place: output})
    assert developer_batch(record).result == {"inlined_in": "batches/1"}
    assert inlined_responses(record) == [{"response": {"x": 1}}]


def test_a_job_of_vertex() -> None:
    """A job's answers would not be found."""
    record = job(
        "JOB_STATE_SUCCEEDED",
        displayName="k",
        createTime="2026-01-02T03:04:05Z",
        inputConfig={"gcsSource": {"uris": ["gs://b/requests.jsonl"]}},
        outputConfig={"gcsDestination": {"outputUriPrefix": "gs://b/output"}},
        outputInfo={"gcsOutputDirectory": "gs://b/output/prediction-1"},
        completionStats={"successfulCount": "3", "incompleteCount": "-1"},
    )
    batch = vertex_batch(record)
    assert (batch.phase, batch.key, batch.upload_ref, batch.is_partial) == (
        BatchPhase.ENDED,
        "k",
        "gs://b/requests.jsonl",
        False,
    )
    assert batch.counts == {"completed": 3}
    assert batch.result == {
        "output_folder": "gs://b/output/prediction-1",
        "output_prefix": "gs://b/output",
        "may_be_empty": False,
    }


@pytest.mark.parametrize(
    ("state", "stats", "phase"),
    [
        ("FAILED", {}, BatchPhase.REJECTED),
        ("FAILED", {"successfulCount": "2"}, BatchPhase.ENDED),
        ("EXPIRED", {"successfulCount": "2"}, BatchPhase.ENDED),
        ("CANCELLED", {}, BatchPhase.ENDED),
        ("PAUSED", {}, BatchPhase.WORKING),
    ],
)
def test_how_jobs_end(state: str, stats: dict[str, str], phase: BatchPhase) -> None:
    """What a job answered before it failed would be paid again."""
    batch = vertex_batch(job(f"JOB_STATE_{state}", completionStats=stats, error={"code": 8}))
    assert batch.phase is phase
    assert batch.is_partial is (phase is BatchPhase.ENDED)
    assert (batch.fault is not None) is (phase is BatchPhase.REJECTED)


@pytest.mark.parametrize(
    ("state", "executed", "may_be_empty"),
    [
        ("CANCELLED", None, True),
        ("CANCELLED", 2, False),
        ("EXPIRED", None, True),
        ("EXPIRED", 2, False),
        ("PARTIALLY_SUCCEEDED", 2, False),
        ("FAILED", 2, False),
        ("SUCCEEDED", 2, False),
    ],
)
@pytest.mark.parametrize("count", ["successfulCount", "failedCount"])
def test_jobs_that_may_have_no_answers(
    state: str, count: str, executed: int | None, may_be_empty: bool
) -> None:
    """Answers whose file is late would count as not executed, and be paid again."""
    stats = {count: str(executed or 0)}
    batch = vertex_batch(job(f"JOB_STATE_{state}", completionStats=stats))
    assert batch.result is not None
    assert batch.result["may_be_empty"] is may_be_empty
    assert batch.executed == executed


@pytest.mark.parametrize(
    "page", [{}, {"nextPageToken": "x"}, {"operations": []}, {"unreachable": []}]
)
def test_an_empty_page(page: dict[str, Any]) -> None:
    """The look into an account without batches would fail for ever."""
    assert operations_of(page, "operations") == []


@pytest.mark.parametrize(
    "page",
    [
        {"error": {"code": 500}},
        {"operations": {}},
        {"operations": "x"},
        {"unreachable": ["us-central1"]},
        {"x": 1},
    ],
)
def test_a_page_that_is_none(page: dict[str, Any]) -> None:
    """Something else would be taken for proof that a batch does not exist."""
    with pytest.raises(UnusableAnswerError):
        operations_of(page, "operations")


def test_entries_without_a_name_are_left_out() -> None:
    """One odd entry would make the whole list unreadable."""
    page = {"operations": [{"name": "batches/1"}, {"name": ""}, {}, None, 3]}
    assert operations_of(page, "operations") == [{"name": "batches/1"}]


@pytest.mark.parametrize("read", [developer_batch, vertex_batch])
@pytest.mark.parametrize("record", [{}, {"name": None}, {"name": ""}, {"name": 3}])
def test_a_batch_without_a_name(read: Any, record: dict[str, Any]) -> None:
    """A batch that cannot be asked for again would count as created."""
    with pytest.raises(UnusableAnswerError):
        read(record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.1Z", datetime(2026, 1, 2, 3, 4, 5, 100_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("0001-01-01T00:00:00+23:00", None),
        ("yesterday", None),
        ("9" * 100, None),
        (1767323045, None),
        (None, None),
    ],
)
def test_times(text: object, expected: datetime | None) -> None:
    """A time that the SDK cannot read (facts 0.3) would make a batch unreadable."""
    assert instant_of(text) == expected


def test_names_in_either_spelling() -> None:
    """A field would not be found in the spelling that the server chose."""
    assert camel("max_output_tokens") == "maxOutputTokens"
    assert camel("maxOutputTokens") == "maxOutputTokens"
    assert field({"a_b": {"cD": 1}}, "aB", "cD") == 1
    assert field({"aB": 1}, "aB", "c") is None
    assert field(None, "a") is None


KEYS = st.sampled_from(
    [
        "name",
        "metadata",
        "state",
        "displayName",
        "inputConfig",
        "fileName",
        "gcsSource",
        "uris",
        "output",
        "responsesFile",
        "inlinedResponses",
        "response",
        "error",
        "code",
        "createTime",
        "batchStats",
        "requestCount",
        "done",
        "outputInfo",
        "gcsOutputDirectory",
        "completionStats",
        "successfulCount",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=6)
    | st.sampled_from(["SUCCEEDED", "FAILED", "EXPIRED", "batches/1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
)


@given(record=st.dictionaries(KEYS, VALUES))
def test_no_shape_breaks_the_readers(record: dict[str, Any]) -> None:
    """A batch of a shape that nobody thought of would stop all polling."""
    for read in (developer_batch, vertex_batch):
        batch = read({**record, "name": "batches/1"})
        assert batch.batch_id == "batches/1"
        assert (batch.fault is None) is (batch.phase is not BatchPhase.REJECTED)
