"""Every provider and endpoint from the command line, against the simulator, with the real SDKs."""

import base64

import polars as pl
import pytest

from tests.cli.commands import Shell

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PROVIDERS = {
    "responses": ["--provider", "openai"],
    "chat": ["--provider", "openai", "--endpoint", "chat"],
    "anthropic": [
        "--provider",
        "anthropic",
        "--model",
        "claude-sonnet-4-5",
        "--anthropic-max-tokens",
        "200",
    ],
    "gemini file": [
        "--provider",
        "gemini",
        "--model",
        "gemini-2.5-flash",
        "--gemini-input-mode",
        "file",
    ],
    "gemini inline": [
        "--provider",
        "gemini",
        "--model",
        "gemini-2.5-flash",
        "--gemini-input-mode",
        "inline",
    ],
}
every_provider = pytest.mark.parametrize("options", PROVIDERS.values(), ids=list(PROVIDERS))


@every_provider
def test_typed_answers(shell: Shell, options: list[str]) -> None:
    """Only one provider could be used without writing Python."""
    typed = ["--structured-output-class", "labels_of_test:Label"]
    shell.ok(*shell.start("--run-id", "r", "--wait", *typed, *options))
    shell.ok(*shell.on("results", "r", "--output", "out.parquet"))
    table = pl.read_parquet(shell.folder / "out.parquet")
    assert table["item_id"].to_list() == ["a", "b", "c"]
    assert table["batch_status"].to_list() == ["ok"] * 3
    assert set(table["topic"]) <= {"card", "cash"}


@every_provider
def test_a_picture(shell: Shell, options: list[str]) -> None:
    """A table of pictures would need a program."""
    (shell.folder / "dot.png").write_bytes(PNG)
    shell.write("pictures.csv", "id,text,picture\na,What is it?,dot.png\nb,And without?,\n")
    files = ["--input", "pictures.csv", "--image-field", "picture"]
    shell.ok(*shell.start("--run-id", "r", "--wait", *files, *options))
    shell.ok(*shell.on("results", "r", "--output", "out.parquet"))
    table = pl.read_parquet(shell.folder / "out.parquet")
    assert table["batch_status"].to_list() == ["ok", "ok"]
    tokens = table["batch_input_tokens"].to_list()
    assert tokens[0] > tokens[1]


@pytest.mark.parametrize(
    "options",
    [
        ["--provider", "openai", "--model", "text-embedding-3-small"],
        ["--provider", "gemini", "--model", "gemini-embedding-001"],
    ],
)
def test_embeddings(shell: Shell, options: list[str]) -> None:
    """Vectors could not be had from the command line."""
    more = ["--endpoint", "embeddings", "--dimensions", "8", "--prompt-template", "{text}"]
    shell.ok("start", "--input", "in.csv", "--db-path", str(shell.db), "--run-id", "r", "--wait",
             "--poll-interval", "0.1", *options, *more)  # fmt: skip
    shell.ok(*shell.on("results", "r", "--output", "out.parquet"))
    table = pl.read_parquet(shell.folder / "out.parquet")
    assert table["embedding"].null_count() == 0
    assert {len(vector) for vector in table["embedding"]} == {8}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--provider", "anthropic"], "--anthropic-max-tokens"),
        (["--provider", "anthropic", "--endpoint", "embeddings"], "no --endpoint embeddings"),
        (["--endpoint", "messages"], "no --endpoint messages"),
        (["--gcs-uri", "gs://b"], "--gcs-uri is for --provider gemini"),
        (["--gemini-backend", "vertex"], "--gemini-backend is for --provider gemini"),
        (["--gemini-input-mode", "file"], "--gemini-input-mode is for --provider gemini"),
        (["--anthropic-max-tokens", "9"], "is for --provider anthropic"),
    ],
)
def test_options_of_another_provider_are_refused(
    shell: Shell, options: list[str], says: str
) -> None:
    """An option would be dropped without a word."""
    result = shell.ok(*shell.start(*options), exit_code=2)
    assert says in result.stderr


def test_a_missing_picture_is_named(shell: Shell) -> None:
    """A row would be sent without its picture."""
    shell.write("pictures.csv", "id,text,picture\na,What is it?,nowhere.png\n")
    start = shell.start("--image-field", "picture", "--input", "pictures.csv")
    result = shell.ok(*start, exit_code=1)
    assert "nowhere.png" in result.stderr
    assert "'a'" in result.stderr
    assert shell.at_provider("batches") == []


def test_a_schema_in_a_file(shell: Shell) -> None:
    """Whoever has a JSON Schema would have to write a Pydantic model."""
    shell.write(
        "topic.json",
        '{"title": "Topic", "type": "object", "required": ["topic"], "additionalProperties": false,'
        ' "properties": {"topic": {"enum": ["card", "cash"]}}}',
    )
    shell.ok(*shell.start("--run-id", "r", "--wait", "--output-schema", "topic.json"))
    shell.ok(*shell.on("results", "r", "--output", "out.parquet"))
    assert set(pl.read_parquet(shell.folder / "out.parquet")["topic"]) <= {"card", "cash"}


@pytest.mark.parametrize(
    ("text", "says"), [("{", "cannot be read"), ("[1]", "no JSON Schema"), (None, "cannot be read")]
)
def test_a_schema_that_is_none(shell: Shell, text: str | None, says: str) -> None:
    """The user would read a traceback about JSON."""
    if text is not None:
        shell.write("topic.json", text)
    result = shell.ok(*shell.start("--output-schema", "topic.json"), exit_code=1)
    assert says in result.stderr
    assert "topic.json" in result.stderr


def test_a_picture_is_no_document(shell: Shell) -> None:
    """A picture would be sent as a PDF file, and be refused when the batch has ended."""
    shell.write("files.csv", "id,text,file\na,What is it?,dot.png\n")
    start = shell.start("--file-field", "file", source="files.csv")
    result = shell.ok(*start, exit_code=1)
    assert "--image-field" in result.stderr
    assert shell.at_provider("batches") == []


def test_another_host_than_at_the_start(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches would count as lost there, and their rows be sent again, or fail."""
    shell.sim.faults(kind="finalizing_hold", seconds=600.0)
    shell.ok(*shell.start("--run-id", "r"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    result = shell.ok(*shell.on("wait", "r", "--timeout", "5"), exit_code=1)
    assert "was started at openai:127.0.0.1:" in result.stderr
    assert "reaches openai:127.0.0.1:9" in result.stderr
