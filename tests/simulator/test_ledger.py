"""The ledger: what counts as paid twice, and what does not."""

from typing import Any


def _report(world: Any, query: str = "") -> Any:
    return world.client._client.get(f"{world.sim.base_url}/_sim/ledger{query}").json()


def test_equal_prompts_of_two_rows_are_two_items(world: Any) -> None:
    """Broken if equal rows of an input raised a false alarm."""
    world.finish(world.submit("same", "same"))
    assert world.sim.ledger().paid_twice() == []
    assert world.sim.ledger().times_paid("run") == {"0": 1, "1": 1}
    assert world.sim.ledger().distinct() == 2


def test_a_row_sent_twice_is_paid_twice(world: Any) -> None:
    """Broken if a double payment went unnoticed because the custom_id's token had changed."""
    first = world.submit("a", "b", token="aaaaaaaa")
    second = world.submit("a", "c", token="bbbbbbbb")
    world.finish(first)
    (entry,) = world.sim.ledger().paid_twice()
    assert (entry.run, entry.row, entry.times) == ("run", "0", 2)
    assert sorted(entry.batches) == sorted([first.id, second.id])
    assert world.sim.ledger().times_paid("run") == {"0": 2, "1": 2}


def test_runs_are_apart(world: Any) -> None:
    """Broken if two runs over the same input looked like a double payment."""
    world.submit("a", run="monday")
    world.finish(world.submit("a", run="tuesday"))
    assert world.sim.ledger().paid_twice() == []
    assert world.sim.ledger().times_paid("tuesday") == {"0": 1}


def test_key_order_and_spacing_do_not_matter(world: Any) -> None:
    """Broken if a body written in another way hid a double payment."""
    body = b'{"custom_id":"t-0","method":"POST","url":"/v1/responses","body":%s}\n'
    world.create(world.upload(body % b'{"model":"m","input":"x"}'))
    world.finish(world.create(world.upload(body % b'{ "input": "x", "model": "m" }')))
    assert len(world.sim.ledger().paid_twice()) == 1


def test_free_faults_are_counted_apart(world: Any) -> None:
    """Broken if a justified retry looked like a double payment."""
    world.sim.faults(kind="line_error", status=503, rounds=1)
    world.finish(world.submit("a", token="aaaaaaaa"))
    world.finish(world.submit("a", token="bbbbbbbb"))
    report = _report(world)
    assert (report["executed"], report["distinct"], report["faulted"]) == (1, 1, 1)
    assert report["faulted_by_kind"] == {"line_error": 1}
    assert report["paid_twice"] == []


def test_spoilt_answers_are_billed_but_may_be_asked_again(world: Any) -> None:
    """Broken if the bill left out spoilt answers, or a retry of one were blamed."""
    world.sim.faults(kind="refusal", rounds=1)
    world.finish(world.submit("a", token="aaaaaaaa"))
    world.finish(world.submit("a", token="bbbbbbbb"))
    assert world.sim.ledger().times_paid("run") == {"0": 2}
    assert world.sim.ledger().defective() == {"refusal": 1}
    assert world.sim.ledger().paid_twice() == []


def test_due_batches_count_before_anybody_polls(world: Any) -> None:
    """Broken if work that a dead client never collected were missing."""
    world.submit("a")
    world.sim.advance_time(100)
    assert world.sim.ledger().executed() == 1


def test_report_over_http(world: Any) -> None:
    """Broken if the ledger could not be read by another process."""
    batch = world.submit("a", "b")
    world.finish(batch)
    report = _report(world, "?entries=1")
    assert report["batches"][batch.id]["executed"] == 2
    assert report["batches"][batch.id]["status"] == "completed"
    assert report["batches"][batch.id]["run"] == "run"
    assert report["billed"]["requests"] == 2
    assert report["billed"]["output_tokens"] > 0
    assert [entry["row"] for entry in report["entries"]] == ["0", "1"]
    assert "entries" not in _report(world)


def test_reset_forgets_everything(world: Any) -> None:
    """Broken if one test's batches leaked into the next."""
    world.finish(world.submit("a"))
    world.sim.faults(kind="missing_line")
    world.client._client.post(f"{world.sim.base_url}/_sim/reset")
    assert _report(world)["executed"] == 0
    assert world.client.batches.list().data == []
    assert world.client.files.list().data == []
    assert len(world.answers("a")) == 1
