"""The page on providers says what the adapters do."""

import re
from pathlib import Path

import pytest

from batchor_core.model.limits import ProviderLimits
from batchor_core.providers.anthropic import adapter as anthropic
from batchor_core.providers.gemini import developer, vertex
from batchor_core.providers.openai import adapter as openai

PAGE = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("OpenAI", openai.LIMITS),
        ("Anthropic", anthropic.LIMITS),
        ("Gemini Developer API", developer.FILE_LIMITS),
        ("Gemini Developer API, inline", developer.INLINE_LIMITS),
        ("Gemini on Vertex AI", vertex.LIMITS),
    ],
)
def test_limits_are_those_in_force(name: str, limits: ProviderLimits) -> None:
    """A reader would plan with other chunks than are sent."""
    found = re.search(rf"^\| {re.escape(name)} \| ([\d,]+) \| ([\d,]+) \|", PAGE, re.MULTILINE)
    assert found is not None
    said = [int(number.replace(",", "")) for number in found.groups()]
    assert said == [limits.max_requests, limits.max_bytes]
