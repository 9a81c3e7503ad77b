"""Keeping secrets out of what is stored, logged and raised."""

from collections.abc import Callable, Iterator

from batchor_core.providers.protocol import Answer

REDACTED = "[redacted]"
_MIN_SECRET_CHARS = 6
"""Shorter keys ("none", "EMPTY") are placeholders for local hosts, and would hit common words."""


class Scrubber:
    """Replaces every occurrence of one secret.

    Args:
        secret: An account's key.
    """

    def __init__(self, secret: str) -> None:
        self._text = secret if len(secret) >= _MIN_SECRET_CHARS else None
        self._bytes = secret.encode("utf-8", "replace")

    def text(self, text: str) -> str:
        """Return ``text`` without the secret."""
        return text.replace(self._text, REDACTED) if self._text else text

    def data(self, data: bytes) -> bytes:
        """Return ``data`` without the secret."""
        return data.replace(self._bytes, REDACTED.encode()) if self._text else data

    def decoded(self, decode: Callable[[bytes], Answer | None], line: bytes) -> Answer | None:
        """Decode a result line; the message of a faulty one, which is stored, is without it."""
        answer = decode(line)
        if answer is not None and answer.fault is not None:
            return decode(self.data(line))
        return answer

    def is_clean(self, error: BaseException) -> bool:
        """Whether no message in the chain of an exception, as a traceback prints it, shows it."""
        return self._text is None or not any(self._text in str(link) for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
