"""Files over the wire, as the SDK sees them."""

import socket
from collections.abc import Callable
from typing import Any

import openai
import pytest


def test_file_round_trip(world: Any) -> None:
    """Broken if an uploaded file would come back changed, or with another size or name."""
    content = b'{"text":"\xe2\x80\xa8 line separators"}\n' * 5_000
    file = world.client.files.create(file=("rows.jsonl", content), purpose="batch")
    assert (file.filename, file.purpose, file.bytes) == ("rows.jsonl", "batch", len(content))
    assert world.client.files.retrieve(file.id) == file
    assert world.raw(file.id) == content


def test_deleted_file_is_gone(world: Any) -> None:
    """Broken if clients could not see that a deletion took effect."""
    file_id = world.upload(b"{}\n")
    assert world.client.files.delete(file_id).deleted
    with pytest.raises(openai.NotFoundError):
        world.client.files.retrieve(file_id)
    with pytest.raises(openai.NotFoundError):
        world.client.files.content(file_id)


def test_other_extensions_are_refused(world: Any) -> None:
    """Broken if an upload passed here that the real API refuses for its name."""
    with pytest.raises(openai.BadRequestError, match=r"Must be \.jsonl"):
        world.upload(b"{}\n", name="upload")


def test_unknown_purpose_is_refused(world: Any) -> None:
    """Broken if the purpose were not checked."""
    with pytest.raises(openai.BadRequestError, match="purpose"):
        world.client.files.create(file=("a.jsonl", b"{}"), purpose="nonsense")


def test_refused_upload_leaves_nothing_on_disk(world: Any) -> None:
    """Broken if refused uploads filled the spool."""
    spool = world.sim.state.spool.folder
    before = sorted(spool.iterdir())
    with pytest.raises(openai.BadRequestError):
        world.upload(b"{}\n", name="upload")
    assert sorted(spool.iterdir()) == before


def test_size_limit(worlds: Any) -> None:
    """Broken if a client could not exercise its handling of files that are too large."""
    world = worlds(max_file_bytes=100)
    with pytest.raises(openai.BadRequestError, match="File is too large"):
        world.upload(b"x" * 101)
    world.upload(b"x" * 100)


def test_list_pages_filters_and_orders(world: Any) -> None:
    """Broken if a search for an upload by name could miss it on a later page."""
    ids = [world.upload(b"{}\n", name=f"{number}.jsonl") for number in range(5)]
    world.client.files.create(file=("other.txt", b"x"), purpose="user_data")
    newest = [file.id for file in world.client.files.list(purpose="batch", limit=2)]
    assert newest == ids[::-1]
    oldest = [file.id for file in world.client.files.list(purpose="batch", order="asc", limit=3)]
    assert oldest == ids
    page = world.client.files.list(purpose="batch", limit=2)
    assert page.has_more
    assert len(page.data) == 2


def test_expiry(world: Any) -> None:
    """Broken if files outlived the expiry that was asked for."""
    file = world.client.files.create(
        file=("a.jsonl", b"{}\n"),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert file.expires_at == file.created_at + 3600
    world.sim.advance_time(3600)
    with pytest.raises(openai.NotFoundError):
        world.client.files.retrieve(file.id)


def test_files_of_batches_expire_by_themselves(world: Any) -> None:
    """Broken if lost results could not be reproduced by waiting for thirty days."""
    batch = world.client.batches.create(
        input_file_id=world.submit("a").input_file_id,
        endpoint="/v1/responses",
        completion_window="24h",
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    done = world.finish(batch)
    world.sim.advance_time(7200)
    with pytest.raises(openai.NotFoundError):
        world.client.files.content(done.output_file_id)
    world.client.files.retrieve(done.input_file_id)
    world.sim.advance_time(30 * 86_400)
    with pytest.raises(openai.NotFoundError):
        world.client.files.retrieve(done.input_file_id)


def test_client_that_vanishes_during_an_upload(world: Any) -> None:
    """Broken if a killed client's half upload became a file, or stayed on disk."""
    spool = world.sim.state.spool.folder
    before = sorted(spool.iterdir())
    address = ("127.0.0.1", int(world.sim.base_url.rsplit(":", 1)[1]))
    head = (
        b"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n"
        b"content-type: multipart/form-data; boundary=b\r\ncontent-length: 1000000\r\n\r\n"
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nxyz'
    )
    with socket.create_connection(address) as connection:
        connection.sendall(head)
        assert _eventually(world, lambda: sorted(spool.iterdir()) != before)
    assert _eventually(world, lambda: sorted(spool.iterdir()) == before)


def _eventually(world: Any, condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within some calls, none of which sees a file."""
    for _ in range(2_000):
        assert world.client.files.list().data == []
        if condition():
            return True
    return False


def test_input_deleted_while_in_progress(world: Any) -> None:
    """Broken if deleting an input file early lost the batch that had already read it."""
    batch = world.submit("hello")
    world.sim.advance_time(20)
    assert world.client.batches.retrieve(batch.id).status == "in_progress"
    world.client.files.delete(batch.input_file_id)
    assert len(world.lines(world.finish(batch).output_file_id)) == 1


def test_malformed_upload_is_refused(world: Any) -> None:
    """Broken if a body that is no form became a file or an error 500."""
    with pytest.raises(openai.BadRequestError, match="multipart"):
        world.client.post("/files", body={"purpose": "batch"}, cast_to=object)


def test_header_says_that_no_model_was_involved(world: Any) -> None:
    """Broken if somebody could take an answer, or an error, for a provider's."""
    for call in ("/v1/files", "/v1/nowhere", "/_sim/health"):
        answer = world.client._client.get(
            world.sim.base_url + call, headers={"authorization": "Bearer k"}
        )
        assert answer.headers["x-batchor-simulator"] == "no model was involved"
        assert answer.headers["x-request-id"]
        assert answer.headers["date"].endswith("GMT")


@pytest.mark.parametrize(
    ("expected", "header"), [("sk-right", "Bearer sk-wrong"), (None, "Basic sk-any")]
)
def test_keys(worlds: Any, expected: str | None, header: str) -> None:
    """Broken if a wrong key were let in, or repeated in the message."""
    world = worlds(api_key=expected)
    stranger = world.client.with_options(default_headers={"Authorization": header})
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.files.list()
    assert caught.value.type == "invalid_request_error"
    assert header.split()[1] not in str(caught.value)
