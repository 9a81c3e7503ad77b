"""Choices that look random and are a function of a digest."""

_MASK = (1 << 64) - 1
_MAX_REFERENCES = 10_000


class Draw:
    """A stream of choices for one answer, and what the choices may look at.

    A linear congruential generator: `random.Random` takes longer to seed than a whole answer
    takes to build.

    Args:
        seed: Start of the stream; equal seeds give equal streams.
        prompt: The text that is answered.

    Attributes:
        depth: How many references of a schema are being followed.
        references_left: How many more may be followed in all.
    """

    __slots__ = ("_state", "depth", "prompt", "references_left")

    def __init__(self, seed: int, prompt: str) -> None:
        self._state = (seed ^ 0x9E3779B97F4A7C15) & _MASK
        self.prompt = prompt
        self.depth = 0
        self.references_left = _MAX_REFERENCES

    def below(self, bound: int) -> int:
        """An integer in `[0, bound)`; `bound` is at least 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return (self._state >> 16) % bound

    def between(self, low: int, high: int) -> int:
        """An integer in `[low, high]`."""
        return low + self.below(high - low + 1)
