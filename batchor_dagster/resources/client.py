"""The providers' own SDK clients in assets and ops, with their usage as metadata."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import dagster as dg

from batchor_core import ConfigurationError
from batchor_core.integration import CallUsage, ProviderConfig, open_sdk_client

ClientContext: TypeAlias = (
    dg.AssetExecutionContext | dg.OpExecutionContext | dg.AssetCheckExecutionContext
)
"""The contexts of steps that may use a client."""


@contextmanager
def client_in_step(
    config: ProviderConfig, context: ClientContext, asset_key: dg.AssetKey | None = None
) -> Iterator[Any]:
    """Open the SDK's client of an account; close it after the block.

    The usage becomes metadata of the asset, or of an op's only output, under the keys of
    dagster-openai (``openai.<model>.calls``, …). It is also logged at the end of the block; an
    asset check and an op of several outputs have the log only.

    Args:
        config: The account.
        context: The step's.
        asset_key: The asset whose metadata shows the usage, in a step that makes several.

    Raises:
        ConfigurationError: The step makes several assets and ``asset_key`` names none of them.
        MissingCredentialsError: There is no key.
    """
    usage = _StepUsage(config.provider, context, _output_name(context, asset_key))
    with open_sdk_client(config, usage.add) as client:
        try:
            yield client
        finally:
            usage.log()


class _StepUsage:
    """Adds up the usage of one client; other clients of the step may add to the same output."""

    def __init__(self, provider: str, context: ClientContext, output_name: str | None) -> None:
        self._provider = provider
        self._context = context
        self._output_name = output_name
        self._total: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, usage: CallUsage) -> None:
        """Add the usage of one call."""
        prefix = f"{self._provider}.{usage.model}"
        used = {  # stored: dagster-openai's names
            f"{prefix}.calls": 1,
            f"{prefix}.total_tokens": usage.prompt_tokens + usage.completion_tokens,
            f"{prefix}.prompt_tokens": usage.prompt_tokens,
            f"{prefix}.completion_tokens": usage.completion_tokens,
        }
        with self._lock:
            self._total.update(used)
            self._show(used)

    def log(self) -> None:
        """Log the total."""
        if self._total:
            told = ", ".join(f"{name}: {count}" for name, count in self._total.items())
            self._context.log.info("used by calls outside of batches: %s", told)

    def _show(self, used: dict[str, int]) -> None:
        if self._output_name is None or isinstance(self._context, dg.AssetCheckExecutionContext):
            return
        # Dagster replaces the value of a key that is added again.
        shown = self._context.get_output_metadata(self._output_name) or {}
        total = {name: shown.get(name, 0) + count for name, count in used.items()}
        self._context.add_output_metadata(total, output_name=self._output_name)


def _output_name(context: ClientContext, asset_key: dg.AssetKey | None) -> str | None:
    """Return the output whose metadata shows the usage; None unless there is exactly one."""
    if isinstance(context, dg.AssetCheckExecutionContext):
        return None
    if context.has_assets_def:
        return _output_of_asset(context.assets_def, asset_key)
    outputs = context.op_def.output_defs
    return outputs[0].name if len(outputs) == 1 and not outputs[0].is_dynamic else None


def _output_of_asset(assets: dg.AssetsDefinition, asset_key: dg.AssetKey | None) -> str:
    names = {key: name for name, key in assets.keys_by_output_name.items()}
    if asset_key is None and len(names) > 1:
        raise ConfigurationError(
            f"the step makes {len(names)} assets: say with get_client_for_asset(context, "
            "asset_key) whose metadata shows what is used"
        )
    key = asset_key or next(iter(names))
    if key not in names:
        raise ConfigurationError(f"asset {key.to_user_string()!r} is not made by this step")
    return names[key]
