"""Strings that match simple regular expressions.

Only what JSON schemas usually hold: literals, classes, escapes, groups, alternatives and
quantifiers. Anything else raises `UnsupportedPatternError`, and the caller falls back to a word.
"""

import string
from collections.abc import Callable

from batchor_core.simulator.draws import Draw

Piece = Callable[[Draw], str]

_ESCAPES = {
    "d": string.digits,
    "w": string.ascii_letters + string.digits + "_",
    "s": " ",
    "n": "\n",
    "t": "\t",
}
_ANY = string.ascii_lowercase
_MAX_EXTRA_REPEATS = 4


class UnsupportedPatternError(Exception):
    """The pattern uses more of the syntax than is understood here."""


def compile_pattern(pattern: str) -> Piece:
    """A maker of strings for `pattern`.

    Raises:
        UnsupportedPatternError: The pattern is not a simple one.
    """
    parser = _PatternParser(pattern)
    piece = parser.alternatives()
    if not parser.at_end():
        raise UnsupportedPatternError(pattern)
    return piece


class _PatternParser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0

    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def alternatives(self) -> Piece:
        options = [self._sequence()]
        while self._accept("|"):
            options.append(self._sequence())
        if len(options) == 1:
            return options[0]
        return lambda draw: options[draw.below(len(options))](draw)

    def _sequence(self) -> Piece:
        pieces: list[Piece] = []
        while not self.at_end() and self._text[self._at] not in "|)":
            if self._accept("^") or self._accept("$"):
                continue
            pieces.append(self._repeated(self._atom()))
        return lambda draw: "".join([piece(draw) for piece in pieces])

    def _atom(self) -> Piece:
        if self._accept("("):
            return self._group()
        char = self._take()
        if char == "[":
            return _one_of(self._class())
        if char == ".":
            return _one_of(_ANY)
        if char == "\\":
            return _one_of(self._escape())
        if char in "*+?{":
            raise UnsupportedPatternError(self._text)
        return _one_of(char)

    def _group(self) -> Piece:
        if self._accept("?") and not self._accept(":"):
            raise UnsupportedPatternError(self._text)
        piece = self.alternatives()
        if not self._accept(")"):
            raise UnsupportedPatternError(self._text)
        return piece

    def _escape(self) -> str:
        char = self._take()
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum():
            raise UnsupportedPatternError(self._text)
        return char

    def _class(self) -> str:
        negated = self._accept("^")
        chars = ""
        while not self._accept("]"):
            first = self._class_member()
            if len(first) == 1 and self._text[self._at : self._at + 1] == "-":
                chars += self._range(first)
            else:
                chars += first
        if negated:
            chars = "".join(char for char in _ANY + string.digits if char not in chars)
        if not chars:
            raise UnsupportedPatternError(self._text)
        return chars

    def _class_member(self) -> str:
        char = self._take()
        return self._escape() if char == "\\" else char

    def _range(self, first: str) -> str:
        self._accept("-")
        if self._text[self._at : self._at + 1] == "]":
            return first + "-"
        last = self._class_member()
        return "".join(chr(code) for code in range(ord(first), ord(last[0]) + 1))

    def _repeated(self, piece: Piece) -> Piece:
        low, high = self._quantifier()
        self._accept("?")
        if (low, high) == (1, 1):
            return piece
        return lambda draw: "".join([piece(draw) for _ in range(draw.between(low, high))])

    def _quantifier(self) -> tuple[int, int]:
        if self._accept("?"):
            return 0, 1
        if self._accept("*"):
            return 0, _MAX_EXTRA_REPEATS
        if self._accept("+"):
            return 1, 1 + _MAX_EXTRA_REPEATS
        if not self._accept("{"):
            return 1, 1
        inside, closed, _ = self._text[self._at :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not low.isdigit() or (high and not high.isdigit()):
            raise UnsupportedPatternError(self._text)
        self._at += len(inside) + 1
        least = int(low)
        if not comma:
            return least, least
        return least, int(high) if high else least + _MAX_EXTRA_REPEATS

    def _accept(self, char: str) -> bool:
        found = self._text[self._at : self._at + 1] == char
        self._at += found
        return found

    def _take(self) -> str:
        if self.at_end():
            raise UnsupportedPatternError(self._text)
        self._at += 1
        return self._text[self._at - 1]


def _one_of(chars: str) -> Piece:
    if len(chars) == 1:
        return lambda _: chars
    return lambda draw: chars[draw.below(len(chars))]
