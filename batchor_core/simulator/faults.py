"""Scripted faults: which rule hits what, and how often.

The kinds themselves are one small function each, in the modules beside this one; `fault_kinds`
lists them. A rule is written as

    {"kind": "line_error", "status": 503, "times": 2, "match": {"prompt": "refund"}}
"""

import re
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

_BOUNDS = ("times", "rounds", "skip")

ALL_PROTOCOLS = frozenset({"openai", "anthropic", "gemini"})
OPENAI_ONLY = frozenset({"openai"})


class FaultError(ValueError):
    """A rule that makes no sense; the message says why."""


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """One way in which a provider misbehaves.

    `defaults` are the parameters that a rule of this kind takes, with their default values;
    `allowed` limits the values of some. Where a protocol has nothing of the sort, it is not among
    `protocols`: rules of this kind then pass it by.
    """

    scope: ClassVar[str]
    matches: ClassVar[frozenset[str]]
    name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    allowed: Mapping[str, Collection[str]] = field(default_factory=dict)
    protocols: frozenset[str] = ALL_PROTOCOLS


@dataclass(frozen=True, kw_only=True)
class ClockKind(FaultKind):
    """Shifts the provider's clock."""

    scope = "clock"
    matches = frozenset()


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a rule is held against; a field that is None is unknown and matches no condition."""

    route: str | None = None
    run: str | None = None
    batch: int | None = None
    endpoint: str | None = None
    custom_id: str | None = None
    prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Match:
    """Conditions of a rule, all of which must hold; None always holds.

    Attributes:
        prompt: Part of the prompt.
        custom_id: Regular expression found in the custom_id.
        run: The run's name (`metadata.batchor_run`).
        batch: Number of the batch among those of its protocol, in order of creation from 0.
        endpoint: The batch's endpoint, such as `/v1/responses` or `/v1/messages`.
        route: The call, such as `batches.create`, `files.content` or `anthropic.batches.create`.
    """

    prompt: str | None = None
    custom_id: str | None = None
    run: str | None = None
    batch: int | None = None
    endpoint: str | None = None
    route: str | None = None

    def hits(self, target: Target) -> bool:
        """Whether every condition holds for `target`."""
        return (
            (self.prompt is None or (target.prompt is not None and self.prompt in target.prompt))
            and (
                self.custom_id is None
                or (
                    target.custom_id is not None
                    and bool(re.search(self.custom_id, target.custom_id))
                )
            )
            and self.hits_batch(target)
        )

    def hits_batch(self, target: Target) -> bool:
        """Whether the conditions that are not about one line hold."""
        return (
            self.run in (None, target.run)
            and self.batch in (None, target.batch)
            and self.endpoint in (None, target.endpoint)
            and self.route in (None, target.route)
        )


@dataclass(kw_only=True)
class FaultRule:
    """A fault with its conditions.

    Attributes:
        times: How often it strikes in all; None is without end.
        rounds: How often it strikes the same item, however often that is sent; None is without
            end. With 1, a retry succeeds.
        skip: How many hits pass unharmed first.
    """

    kind: FaultKind
    match: Match
    parameters: Mapping[str, Any]
    times: int | None = None
    rounds: int | None = None
    skip: int = 0
    struck: int = 0
    passed: int = 0
    _struck_items: dict[object, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """The value of a parameter of the kind."""
        return self.parameters[name]

    def strike(self, *items: object) -> bool:
        """Count one use, on what shares a request; False if the rule lets it pass or is used up.

        Of several items it passes those only that have all been struck often enough.
        """
        if self.passed < self.skip:
            self.passed += 1
            return False
        if self.times is not None and self.struck >= self.times:
            return False
        if self.rounds is not None:
            before = {item: self._struck_items.get(item, 0) for item in items or (None,)}
            if min(before.values()) >= self.rounds:
                return False
            self._struck_items |= {item: count + 1 for item, count in before.items()}
        self.struck += 1
        return True

    def describe(self) -> dict[str, Any]:
        """The rule as JSON values, with how often it struck."""
        conditions = {key: value for key, value in vars(self.match).items() if value is not None}
        return {
            "kind": self.kind.name,
            "match": conditions,
            "times": self.times,
            "rounds": self.rounds,
            "skip": self.skip,
            "struck": self.struck,
            **self.parameters,
        }


K = TypeVar("K", bound=FaultKind)


class FaultBook:
    """The rules in force. All that hit are applied, in the order they were given.

    Args:
        kinds: Every kind that a rule may name.
    """

    def __init__(self, kinds: Mapping[str, FaultKind]) -> None:
        self._kinds = kinds
        self._rules: list[FaultRule] = []
        self._lock = threading.Lock()

    def add(self, rules: Iterable[Mapping[str, Any]]) -> None:
        """Put rules in force, all or none.

        Raises:
            FaultError: A rule names an unknown kind, parameter or condition.
        """
        parsed = [self._parse(rule) for rule in rules]
        with self._lock:
            self._rules += parsed

    def clear(self) -> None:
        """Put every rule out of force."""
        with self._lock:
            self._rules = []

    def describe(self) -> list[dict[str, Any]]:
        """The rules as JSON values."""
        return [rule.describe() for rule in self._rules]

    def rules(self, kind_type: type[K], target: Target) -> list[tuple[FaultRule, K]]:
        """The rules of one scope that may hit something in `target`; none is used up by it."""
        return [
            (rule, rule.kind)
            for rule in self._rules
            if isinstance(rule.kind, kind_type) and rule.match.hits_batch(target)
        ]

    def of(self, protocol: str) -> "ProtocolFaults":
        """The rules in force, as one protocol sees them."""
        return ProtocolFaults(self, protocol)

    def clock_skew_s(self) -> float:
        """The sum of all shifts of the clock."""
        return float(
            sum(rule["seconds"] for rule in self._rules if isinstance(rule.kind, ClockKind))
        )

    def _parse(self, rule: Mapping[str, Any]) -> FaultRule:
        given = dict(rule)
        kind = self._kinds.get(given.pop("kind", ""))
        if kind is None:
            raise FaultError(f"unknown fault {rule.get('kind')!r}; known: {sorted(self._kinds)}")
        match = _parse_match(kind, given.pop("match", None) or {})
        bounds = {name: given.pop(name) for name in _BOUNDS if given.get(name) is not None}
        for name, bound in bounds.items():
            _check_type(name, bound, 0)
        for name, value in given.items():
            if name not in kind.defaults:
                known = sorted(kind.defaults)
                raise FaultError(f"{kind.name!r} takes no parameter {name!r}; known: {known}")
            _check_type(name, value, kind.defaults[name])
            if name in kind.allowed and value not in kind.allowed[name]:
                raise FaultError(f"{name} {value!r} is none of {sorted(kind.allowed[name])}")
        return FaultRule(kind=kind, match=match, parameters={**kind.defaults, **given}, **bounds)


@dataclass(frozen=True)
class ProtocolFaults:
    """The rules in force whose kinds exist in one protocol."""

    book: FaultBook
    protocol: str

    def rules(self, kind_type: type[K], target: Target) -> list[tuple[FaultRule, K]]:
        """The rules of one scope that may hit something in `target`; none is used up by it."""
        return [
            (rule, kind)
            for rule, kind in self.book.rules(kind_type, target)
            if self.protocol in kind.protocols
        ]


def _check_type(name: str, value: Any, default: Any) -> None:
    """Parameters have the type of their default; None as default takes anything."""
    expected = (int, float) if isinstance(default, float) else type(default)
    odd_bool = isinstance(value, bool) and not isinstance(default, bool)
    if default is not None and (odd_bool or not isinstance(value, expected)):
        raise FaultError(f"{name} must be of type {type(default).__name__}, not {value!r}")


def _parse_match(kind: FaultKind, conditions: Mapping[str, Any]) -> Match:
    unknown = sorted(set(conditions) - kind.matches)
    if unknown:
        raise FaultError(
            f"{kind.name!r} cannot be matched by {unknown[0]!r}; known: {sorted(kind.matches)}"
        )
    if "custom_id" in conditions:
        try:
            re.compile(conditions["custom_id"])
        except re.error as error:
            raise FaultError(f"custom_id {conditions['custom_id']!r}: {error}") from error
    return Match(**conditions)
