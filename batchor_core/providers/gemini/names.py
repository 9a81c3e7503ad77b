"""What both of Gemini's backends name alike."""

import hashlib

from batchor_core.planning.schema_compiler import Dialect
from batchor_core.providers.gemini.config import GeminiProviderConfig

_HASH_CHARS = 16


def display_name(key: str, chars: int) -> str:
    """Return a submission's key as a batch's name; a longer one ends in a hash of the whole."""
    if len(key) <= chars:
        return key
    digest = hashlib.blake2b(key.encode(), digest_size=_HASH_CHARS // 2).hexdigest()
    return f"{key[: chars - _HASH_CHARS - 1]}-{digest}"


def model_path(model: str) -> str:
    """Return a model as a resource; one that names its collection (``tunedModels/x``) is one."""
    return model if "/" in model else f"models/{model}"


def dialect_of(config: GeminiProviderConfig) -> Dialect:
    """Return how output schemas are wanted."""
    is_json_schema = config.schema_dialect == "responseJsonSchema"
    return Dialect.GEMINI_JSON_SCHEMA if is_json_schema else Dialect.GEMINI
