"""Looking for what would keep batch runs from working here, with a remedy for each finding.

Nothing is sent to a model: a provider is asked for the list of its batches, once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from batchor_core.artifacts import ArtifactStore
from batchor_core.clock import Clock
from batchor_core.errors import ArtifactMissingError, BatchorError, ProviderError
from batchor_core.ids import new_run_id
from batchor_core.job import StoredJob
from batchor_core.model.faults import FaultKind
from batchor_core.model.records import ArtifactRef
from batchor_core.planning.prices import batch_price
from batchor_core.planning.tokens import load_vocabulary
from batchor_core.providers.protocol import BatchProvider, Wanted
from batchor_core.providers.registry import ProviderConfig, ProviderFactory, connect
from batchor_core.runner import BatchRunner
from batchor_core.store.protocol import Store

_CLOCK_TOLERANCE = timedelta(seconds=60)
_PROBE = b"batchor doctor\n"
_FAR_AHEAD = timedelta(days=1)
_ACCOUNTS = 10


class Health(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Runs work, but not as well as they could."""
    ERROR = "error"
    """Runs cannot work."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check has found.

    Attributes:
        check: ``store``, ``migrations``, ``artifacts``, ``credentials``, ``connection``,
            ``clock``, ``limits``, ``vocabulary`` or ``prices``. Programs rely on the names.
        about: The model or account that it is about; None for what all runs share.
        detail: What was found, in one line; never holds a key.
        remedy: What to do about it; None where all is well.
    """

    check: str
    health: Health
    detail: str
    about: str | None = None
    remedy: str | None = None


class Doctor:
    """Examines one place where runs are kept, and accounts of providers.

    Args:
        open_runner: Opens the place; what that raises is a finding.
        clock: The machine's time.
        connect: Makes the adapter of a provider's config.
        has_vocabulary: Whether a model's vocabulary can be had here.
    """

    def __init__(
        self,
        open_runner: Callable[[], BatchRunner],
        clock: Clock,
        *,
        connect: ProviderFactory = connect,
        has_vocabulary: Callable[[str], bool] | None = None,
    ) -> None:
        self._open = open_runner
        self._clock = clock
        self._connect = connect
        self._has_vocabulary = has_vocabulary or (lambda model: load_vocabulary(model) is not None)

    def examine(self, configs: Sequence[ProviderConfig]) -> Iterator[Finding]:
        """Yield findings, one after the other: some take seconds.

        Args:
            configs: The models to look at; none: those of the runs that are kept here.
        """
        try:
            runner = self._open()
        except BatchorError as exc:
            yield _bad("store", str(exc), "mend that, or name another place for the state")
            for config in configs:
                yield from self._of_model(config, None)
            return
        with runner:
            yield from _of_store(runner.store)
            yield _of_artifacts(runner.artifacts)
            for config in configs or configs_of_runs(runner.store):
                yield from self._of_model(config, runner.store)

    def _of_model(self, config: ProviderConfig, store: Store | None) -> Iterator[Finding]:
        about = f"{config.provider} {config.model}"
        try:
            provider = self._connect(config)
        except BatchorError as exc:
            yield _bad("credentials", str(exc), "set it in the environment or in .env", about)
        else:
            try:
                yield from self._of_account(provider, about)
                if store is not None:
                    yield _of_limits(store, provider.scope, about)
            finally:
                provider.close()
        yield self._of_vocabulary(config.model, about)
        yield _of_prices(config, about)

    def _of_account(self, provider: BatchProvider, about: str) -> Iterator[Finding]:
        before = self._clock.now()
        try:
            seen = provider.find(_nothing(self._clock))
        except ProviderError as exc:
            yield _refused(exc, about)
            return
        detail = f"{provider.host} lists batches of this account"
        yield Finding(check="credentials", health=Health.OK, detail=detail, about=about)
        ours = before + (self._clock.now() - before) / 2
        yield _of_clock(seen.server_time, ours, about)

    def _of_vocabulary(self, model: str, about: str) -> Finding:
        if self._has_vocabulary(model):
            detail = "tokens are counted with tiktoken"
            return Finding(check="vocabulary", health=Health.OK, detail=detail, about=about)
        return Finding(
            check="vocabulary",
            health=Health.WARNING,
            about=about,
            detail="the vocabulary cannot be loaded: tokens are estimated from bytes, generously",
            remedy="allow its download, or set TIKTOKEN_CACHE_DIR to a folder that has it",
        )


def configs_of_runs(store: Store) -> list[ProviderConfig]:
    """Return the models of the newest runs, each account's model once."""
    found: dict[str, ProviderConfig] = {}
    for run in store.list_runs(limit=200):
        if run.scope not in found and len(found) < _ACCOUNTS:
            found[run.scope] = StoredJob.model_validate(run.spec).provider_config
    return list(found.values())


def _of_store(store: Store) -> Iterator[Finding]:
    try:
        health = store.check()
    except BatchorError as exc:
        yield _bad("store", str(exc), "mend that: nothing can be recorded")
        return
    detail = f"{health.location} can be read and written"
    yield Finding(check="store", health=Health.OK, detail=detail)
    if health.schema == health.newest:
        detail = f"schema {health.schema}, the newest"
        yield Finding(check="migrations", health=Health.OK, detail=detail)
    else:
        detail = f"schema {health.schema}, and this version wants {health.newest}"
        yield _bad("migrations", detail, "let all processes use one version of batchor-dagster")


def _of_artifacts(artifacts: ArtifactStore) -> Finding:
    """Write a file, read it back, and remove it."""
    folder = f"doctor/{new_run_id()}"
    try:
        with artifacts.writer(f"{folder}/probe.txt") as file:
            file.write(_PROBE)
            ref = file.commit()
        with artifacts.local(ref) as path:
            path.read_bytes()
        artifacts.delete(ref.path)
        if _is_there(artifacts, ref):
            detail = f"a file under {artifacts.root} is still there after it was removed"
            return _bad("artifacts", detail, "allow deleting there, or prune by other means")
        artifacts.delete_folder(folder)
    except BatchorError as exc:
        remedy = "allow writing, reading and deleting there, or name another place (--artifacts)"
        return _bad("artifacts", str(exc), remedy)
    detail = f"a file under {artifacts.root} was written, read back and removed"
    return Finding(check="artifacts", health=Health.OK, detail=detail)


def _is_there(artifacts: ArtifactStore, ref: ArtifactRef) -> bool:
    try:
        with artifacts.local(ref):
            return True
    except ArtifactMissingError:
        return False


def _nothing(clock: Clock) -> Wanted:
    """Return what no account has, so recent that one page of its list is enough to know."""
    return Wanted(
        key="batchor-doctor",
        upload_ref=None,
        chunk_token="batchor0",  # noqa: S106 - no secret: what custom ids begin with
        request_count=0,
        since=clock.now() + _FAR_AHEAD,
    )


def _refused(error: ProviderError, about: str) -> Finding:
    if error.fault.kind is FaultKind.ACCOUNT:
        remedy = "check the key, its project and permissions, and the account's billing"
        return _bad("credentials", str(error), remedy, about)
    remedy = "check the network, the proxy and the base URL; then try again"
    return _bad("connection", str(error), remedy, about)


def _of_clock(theirs: datetime | None, ours: datetime, about: str) -> Finding:
    if theirs is None:
        return Finding(
            check="clock",
            health=Health.WARNING,
            about=about,
            detail="the provider's answer has no Date header to compare with",
            remedy="let the proxy pass it: unacknowledged batches are looked for by that time",
        )
    ahead_s = (ours - theirs).total_seconds()
    detail = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the provider's"
    if abs(ahead_s) <= _CLOCK_TOLERANCE.total_seconds():
        return Finding(check="clock", health=Health.OK, detail=detail, about=about)
    remedy = "set the machine's clock, by NTP"
    return Finding(check="clock", health=Health.WARNING, detail=detail, about=about, remedy=remedy)


def _of_limits(store: Store, scope: str, about: str) -> Finding:
    """Tell what the provider has named as limits of this model's queue."""
    limits = asdict(store.scope_limits(scope))
    known = [f"{value:,} {name.removeprefix('max_')}" for name, value in limits.items() if value]
    detail = f"no more than {', '.join(known)} at once" if known else "none met so far"
    return Finding(check="limits", health=Health.OK, detail=detail, about=about)


def _of_prices(config: ProviderConfig, about: str) -> Finding:
    price = batch_price(config.provider, config.model, config.price)
    if price is None:
        return Finding(
            check="prices",
            health=Health.WARNING,
            about=about,
            detail="unknown: cost is shown as unknown, and budgets are refused",
            remedy="state the model's price (price=TokenPrice(...) in the provider's config)",
        )
    detail = f"${price.input_usd:g} in, ${price.output_usd:g} out per million tokens, in batches"
    return Finding(check="prices", health=Health.OK, detail=detail, about=about)


def _bad(check: str, detail: str, remedy: str, about: str | None = None) -> Finding:
    return Finding(check=check, health=Health.ERROR, detail=detail, about=about, remedy=remedy)
