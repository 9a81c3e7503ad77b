"""What the simulated model says to one request, before a protocol gives it a shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b, shake_128
from math import hypot
from typing import Any, NamedTuple

import msgspec

from batchor_core.simulator.draws import Draw
from batchor_core.simulator.schema_values import compile_schema
from batchor_core.simulator.scripted_answers import (
    AnswerScript,
    Question,
    fields_for,
)
from batchor_core.simulator.strings import Generator

NOTICE = "no model was involved"
_SEED_STEP = 0x9E3779B97F4A7C15
_EXCERPT_CHARS = 80
_BYTES_PER_TOKEN = 4


class Input(NamedTuple):
    """One of the inputs that share a request: each counts and costs as if it came alone."""

    digest: bytes
    tokens: int


@dataclass(slots=True, kw_only=True)
class Answer:
    """The verdict on one request; scripted faults change it before it is written.

    Attributes:
        text: What the model says; JSON if a schema was asked for.
        inputs: What shares the request, in its order; empty for a request that is one question.
        vectors: Embeddings, in the order of the inputs.
        status: HTTP status of the line; 200 unless something was refused or failed.
        error: The HTTP error object for a status other than 200; each protocol fills in a type
            that is None.
        refused: The text is a refusal.
        truncated: The text was cut by the token limit.
        billed: Whether the provider charges for it.
        fault: Name of what was done to the answer; empty if nothing.
        copies: How many times its line is written; 0 loses it.
        raw_before: Raw lines written in front of it, without line ends.
        raw_instead: A raw line written in place of the answer.
        edits: What is done to the line's record before it is written.
        patches: Bytes of the written line, and what stands in their place: for what no encoder
            writes.
        also_as: Further custom_ids under which the same answer is written.
        misfiled: Written to the other of the two result files.
        tool: The tool that is called with the text, JSON then, as its input; empty for none.
        cache_prefix: What of the request is to be cached; empty for nothing.
        cached_tokens: Input tokens read from a cache.
        cache_write_tokens: Input tokens written to a cache.
    """

    custom_id: str
    url: str
    prompt: str
    model: str
    digest: bytes
    text: str = ""
    inputs: Sequence[Input] = ()
    vectors: list[list[float]] | None = None
    base64: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    created_unix: int = 0
    status: int = 200
    error: dict[str, Any] | None = None
    refused: bool = False
    truncated: bool = False
    billed: bool = True
    fault: str = ""
    copies: int = 1
    raw_before: list[bytes] = field(default_factory=list)
    raw_instead: bytes | None = None
    edits: tuple[Callable[[dict[str, Any]], None], ...] = ()
    patches: tuple[tuple[bytes, bytes], ...] = ()
    also_as: tuple[str, ...] = ()
    misfiled: bool = False
    tool: str = ""
    cache_prefix: bytes = b""
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def fail(self, status: int, error: dict[str, Any] | None, fault: str) -> None:
        """Turn it into an HTTP error, which costs nothing."""
        self.status, self.error, self.fault, self.billed = status, error, fault, False
        self.input_tokens = self.output_tokens = 0

    def say(self, text: str) -> None:
        """Set the text and what it costs."""
        self.text = text
        self.output_tokens = estimate_tokens(len(text))

    def truncate(self, max_tokens: int) -> None:
        """Cut the text after `max_tokens` tokens."""
        self.text = self.text[: max_tokens * _BYTES_PER_TOKEN]
        self.output_tokens = max_tokens
        self.truncated = True


class AnswerWriter:
    """Writes the answers of the simulated model: a function of seed, script and request alone.

    Args:
        seed: See `SimulatorOptions.seed`.
        script: Answers that are given in place of made-up ones.
    """

    def __init__(self, seed: int, script: AnswerScript) -> None:
        self._seed = seed * _SEED_STEP
        self._script = script
        self._generator = lru_cache(maxsize=64)(_compile)
        self._schema = lru_cache(maxsize=64)(msgspec.json.decode)

    def text(self, answer: Answer) -> None:
        """Answer in prose that says what it is and echoes the prompt."""
        scripted = self._scripted(answer)
        answer.say(_prose(answer) if scripted is None else scripted)

    def any_json(self, answer: Answer) -> None:
        """Answer with a JSON object that nobody has described."""
        scripted = self._scripted(answer)
        answer.say(_json({"answer": _prose(answer)}) if scripted is None else scripted)

    def structured(self, answer: Answer, schema_json: bytes) -> None:
        """Answer with JSON that conforms to a JSON Schema, given as JSON text.

        A scripted answer may leave out fields, which are made up then, and need not conform.
        """
        draw = Draw(int.from_bytes(answer.digest[:8]) ^ self._seed, answer.prompt)
        made_up = self._generator(schema_json)(draw)
        scripted = self._scripted(answer, schema_json, made_up)
        answer.say(_json(made_up) if scripted is None else scripted)

    def _scripted(
        self, answer: Answer, schema_json: bytes = b"{}", made_up: Any = None
    ) -> str | None:
        """Return what the script says, if it says anything; missing fields are made up.

        Raises:
            ScriptError: No provider could say that.
        """
        if self._script.is_empty:
            return None
        said = self._script.reply_to(Question(prompt=answer.prompt, model=answer.model))
        if said is None or isinstance(said, str):
            return said
        fields = fields_for(said, self._schema(schema_json))
        return _json({**made_up, **fields} if isinstance(made_up, dict) else fields)

    def embed(self, answer: Answer, texts: Sequence[bytes], dimensions: int) -> None:
        """Answer with a unit vector for each text, which depends on it and the model alone.

        Fewer dimensions give the beginning of the longer vector, brought to length 1 again.
        """
        key = f"{self._seed}:{answer.model}:".encode()
        answer.vectors = [_unit_vector(key + text, dimensions) for text in texts]


def _prose(answer: Answer) -> str:
    return f"Simulated answer ({NOTICE}) to: {answer.prompt[:_EXCERPT_CHARS]}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _compile(schema_json: bytes) -> Generator:
    return compile_schema(msgspec.json.decode(schema_json))


def estimate_tokens(size_bytes: int) -> int:
    """The simulator's notion of tokens."""
    return max(1, size_bytes // _BYTES_PER_TOKEN)


def request_digest(url: str, canonical_body: bytes) -> bytes:
    """Identity of a request, 16 bytes, the same on every machine and in every run."""
    return blake2b(canonical_body, digest_size=16, person=url[-16:].encode()).digest()


def _unit_vector(seed: bytes, dimensions: int) -> list[float]:
    # One call of an extendable hash makes all numbers; memoryview reads them as 16-bit integers.
    numbers = memoryview(shake_128(seed).digest(2 * dimensions)).cast("h").tolist()
    scale = 1 / (hypot(*numbers) or 1)
    return [number * scale for number in numbers]
