"""How many input tokens a request has, estimated from a sample.

Counting every row would cost more than all other work together. A few lines of each block are
counted with the model's own vocabulary, the rest is extrapolated by bytes with a margin. Where the
vocabulary cannot be had, bytes alone decide, conservatively.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

SAMPLE_LINES = 48
SAMPLE_BYTES = 4_096
"""Of one line at most: a long run of one letter takes tiktoken minutes."""
SAFETY_MARGIN = 1.1
VOCABULARY_TIMEOUT_S = 5.0
VOCABULARY_VARIABLE = "BATCHOR_VOCABULARY"
FALLBACK_TOKENS_PER_BYTE = 1 / 3
_FALLBACK_ENCODING = "o200k_base"


class Vocabulary(Protocol):
    """Something that splits text into tokens (tiktoken's ``Encoding``)."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Return the text's tokens."""
        ...


class TokenEstimator:
    """Estimates tokens of request bodies; loads each model's vocabulary once, when first asked.

    Loading may need a download: it gets five seconds. After one failure nothing is tried again by
    this object, for any model: the network is the same.

    Args:
        load: Returns a model's vocabulary, or None where it cannot be had.
    """

    def __init__(self, load: Callable[[str], Vocabulary | None] | None = None) -> None:
        self._load = load or load_vocabulary
        self._vocabularies: dict[str, Vocabulary | None] = {}

    def tokens_per_byte(self, model: str | None, bodies: Sequence[bytes]) -> float:
        """Return tokens per byte over a sample of ``bodies``, the safety margin included.

        ``model`` is one of OpenAI's; None for one whose vocabulary nobody publishes.
        """
        vocabulary = self._vocabulary(model) if model else None
        step = max(1, len(bodies) // SAMPLE_LINES)
        sample = [body[:SAMPLE_BYTES].decode(errors="ignore") for body in bodies[::step]]
        sample = sample[:SAMPLE_LINES]
        size = sum(len(text.encode()) for text in sample)
        if vocabulary is None or not size:
            return FALLBACK_TOKENS_PER_BYTE
        tokens = sum(len(vocabulary.encode_ordinary(text)) for text in sample)
        return SAFETY_MARGIN * tokens / size

    def has_vocabulary(self, model: str | None) -> bool:
        """Whether tokens of this model are counted on a sample, and not estimated from bytes."""
        return model is not None and self._vocabulary(model) is not None

    def _vocabulary(self, model: str) -> Vocabulary | None:
        if model not in self._vocabularies:
            has_failed = None in self._vocabularies.values()
            self._vocabularies[model] = None if has_failed else self._load(model)
        return self._vocabularies[model]


def load_vocabulary(model: str, timeout_s: float = VOCABULARY_TIMEOUT_S) -> Vocabulary | None:
    """Return the model's tiktoken vocabulary, or None after one warning.

    Where the environment says ``BATCHOR_VOCABULARY=off`` it is not looked for, which is no warning.

    The download has no time-out of its own, so it runs in a daemon thread that is left behind
    when it takes longer than ``timeout_s`` seconds.
    """
    if os.environ.get(VOCABULARY_VARIABLE) == "off":
        return None
    found: list[Vocabulary] = []
    problem: list[str] = []

    def load() -> None:
        try:
            found.append(_encoding(model))
        except Exception as exc:  # noqa: BLE001 - whatever a download can raise means: no vocabulary
            problem.append(type(exc).__name__)

    thread = threading.Thread(target=load, name="batchor-vocabulary", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if found:
        return found[0]
    logger.warning(
        "tokens are estimated from bytes: the vocabulary of %r could not be loaded (%s); set "
        "TIKTOKEN_CACHE_DIR to a folder that has it for closer estimates",
        model,
        problem[0] if problem else f"no answer within {timeout_s:g} s",
    )
    return None


def _encoding(model: str) -> Vocabulary:
    import tiktoken  # noqa: PLC0415 - costs a quarter of a second; only needed where rows are ingested

    try:
        return tiktoken.encoding_for_model(model)
    except KeyError:
        return tiktoken.get_encoding(_FALLBACK_ENCODING)
