"""Simulated strings: formats, patterns, lengths, and choices that fit the prompt."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from batchor_core.simulator.draws import Draw
from batchor_core.simulator.patterns import UnsupportedPatternError, compile_pattern

Generator = Callable[[Draw], Any]

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "indigo", "kelp")
_PATTERN_TRIES = 20
_EXCERPT_CHARS = 60
_WORD_END = re.compile(r"[a-z]{0,4}\b").match
_SUFFIXES = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "s", "y", "e")


def word(draw: Draw) -> str:
    """A short word."""
    return _WORDS[draw.below(len(_WORDS))]


def string_generator(schema: dict[str, Any]) -> Generator:
    """A maker of strings that conform to a schema of type string."""
    least = int(schema.get("minLength", 0))
    most = schema.get("maxLength")
    if "pattern" in schema:
        return _pattern_generator(schema["pattern"], least, most)
    made = _FORMATS.get(schema.get("format", ""))
    if made is not None:
        return made
    return _free_text(least, most)


def choice_generator(values: Sequence[Any]) -> Generator:
    """A maker of enum values: the one that the prompt speaks of last, else any.

    The last mention wins, because prompts name the choices before the text to be judged.
    """
    choices = list(values)
    if not choices:
        raise ValueError("an enum without values")
    if len(choices) == 1:
        return lambda _: choices[0]
    by_stem = {
        stem: choice for choice in choices if isinstance(choice, str) for stem in _stems(choice)
    }

    def choose(draw: Draw) -> Any:
        stem = _last_mention(draw.prompt.lower(), by_stem)
        return choices[draw.below(len(choices))] if stem is None else by_stem[stem]

    return choose


def _last_mention(text: str, stems: Iterable[str]) -> str | None:
    """The stem that begins a word furthest to the right; much faster than one expression."""
    found, where = None, -1
    for stem in stems:
        at = text.rfind(stem)
        while at > where:
            if (at == 0 or not text[at - 1].isalnum()) and _WORD_END(text, at + len(stem)):
                found, where = stem, at
                break
            at = text.rfind(stem, 0, at + len(stem) - 1)
    return found


def _stems(choice: str) -> list[str]:
    words = [part for part in re.split(r"[^a-z0-9]+", choice.lower()) if len(part) > 1]
    return [_stem(part) for part in words]


def _stem(text: str) -> str:
    for suffix in _SUFFIXES:
        if text.endswith(suffix) and len(text) - len(suffix) >= 4:
            return text[: -len(suffix)]
    return text


def _free_text(least: int, most: int | None) -> Generator:
    def text(draw: Draw) -> str:
        made = f"Simulated {word(draw)}"
        if draw.prompt and (most is None or most > _EXCERPT_CHARS):
            made += f": {draw.prompt[:_EXCERPT_CHARS]}"
        if len(made) < least:
            made += " " * (least > len(made)) + "x" * (least - len(made) - 1)
        return made if most is None else made[:most]

    return text


def _pattern_generator(pattern: str, least: int, most: int | None) -> Generator:
    try:
        made = compile_pattern(pattern)
        wanted = re.compile(pattern)
    except (UnsupportedPatternError, re.error):
        return _free_text(least, most)

    def matching(draw: Draw) -> str:
        text = ""
        for _ in range(_PATTERN_TRIES):
            text = made(draw)
            fits = least <= len(text) and (most is None or len(text) <= most)
            if fits and wanted.search(text):
                break
        return text

    return matching


def _date(draw: Draw) -> str:
    return f"2025-{draw.between(1, 12):02d}-{draw.between(1, 28):02d}"


def _time(draw: Draw) -> str:
    return f"{draw.below(24):02d}:{draw.below(60):02d}:{draw.below(60):02d}Z"


def _uuid(draw: Draw) -> str:
    return str(UUID(int=draw.below(1 << 48) << 64 | draw.below(1 << 48), version=4))


_FORMATS: dict[str, Generator] = {
    "date": _date,
    "time": _time,
    "date-time": lambda draw: f"{_date(draw)}T{_time(draw)}",
    "duration": lambda draw: f"PT{draw.between(1, 59)}M",
    "uuid": _uuid,
    "email": lambda draw: f"{word(draw)}@example.com",
    "hostname": lambda draw: f"{word(draw)}.example.com",
    "ipv4": lambda draw: f"192.0.2.{draw.below(256)}",
    "ipv6": lambda draw: f"2001:db8::{draw.below(65536):x}",
    "uri": lambda draw: f"https://example.com/{word(draw)}",
}
