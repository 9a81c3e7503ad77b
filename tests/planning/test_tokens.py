"""Estimates of input tokens."""

import logging
import threading

import pytest

from batchor_core.planning import tokens
from batchor_core.planning.tokens import (
    FALLBACK_TOKENS_PER_BYTE,
    SAFETY_MARGIN,
    SAMPLE_BYTES,
    SAMPLE_LINES,
    TokenEstimator,
    load_vocabulary,
)


class Words:
    """A vocabulary in which each word is a token."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def encode_ordinary(self, text: str) -> list[int]:
        self.seen.append(text)
        return [0] * len(text.split())


def test_a_sample_is_counted_and_extrapolated_with_a_margin() -> None:
    """Limits would be exceeded by estimates that are too low."""
    ratio = TokenEstimator(lambda model: Words()).tokens_per_byte("m", [b"one two three"] * 1000)
    assert ratio == pytest.approx(SAFETY_MARGIN * 3 / 13)


def test_only_a_few_lines_are_counted() -> None:
    """Counting would cost more than all other work together."""
    words = Words()
    TokenEstimator(lambda model: words).tokens_per_byte("m", [b"x y"] * 100_000)
    assert len(words.seen) == SAMPLE_LINES


def test_of_a_long_line_only_the_beginning_is_counted() -> None:
    """One long line would take minutes; tiktoken is slow on long runs of one letter."""
    words = Words()
    body = "é".encode() * 1_000_000
    TokenEstimator(lambda model: words).tokens_per_byte("m", [body[1:]])
    assert max(len(text.encode()) for text in words.seen) <= SAMPLE_BYTES


@pytest.mark.parametrize("bodies", [[], [b""]])
def test_nothing_to_count_falls_back(bodies: list[bytes]) -> None:
    """An empty block would end in a division by zero."""
    ratio = TokenEstimator(lambda model: Words()).tokens_per_byte("m", bodies)
    assert ratio == FALLBACK_TOKENS_PER_BYTE


def test_a_vocabulary_that_cannot_be_had_is_asked_for_once() -> None:
    """Each block, or each model, would wait for the network again."""
    asked: list[str] = []
    estimator = TokenEstimator(asked.append)
    for model in ("a", "a", "b"):
        assert estimator.tokens_per_byte(model, [b"text"]) == FALLBACK_TOKENS_PER_BYTE
    assert asked == ["a"]


def test_a_slow_download_is_given_up_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run without a network would hang before it began."""
    gate = threading.Event()
    monkeypatch.setattr(tokens, "_encoding", lambda model: gate.wait(20))
    with caplog.at_level(logging.WARNING):
        assert load_vocabulary("m", timeout_s=0.01) is None
    gate.set()
    assert len(caplog.records) == 1
    assert "TIKTOKEN_CACHE_DIR" in caplog.text


def test_a_download_that_fails_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run would fail for want of an estimate."""

    def fail(model: str) -> None:
        raise ConnectionError(model)

    monkeypatch.setattr(tokens, "_encoding", fail)
    with caplog.at_level(logging.WARNING):
        assert load_vocabulary("m") is None
    assert "ConnectionError" in caplog.text
