"""What was paid, by run and day: sums over collected submissions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    RowMapping,
    and_,
    case,
    func,
    select,
    type_coerce,
)

from batchor_core.model.records import RunDayCosts, Usage
from batchor_core.model.states import SubmissionState
from batchor_core.store.sql.tables import members, runs, submissions
from batchor_core.store.sql.transaction import Aggregate, Transaction

_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_USAGE = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")


class Costs(Aggregate):
    """The costs' part of the store."""

    def costs(
        self, *, namespace: str | None = None, since: datetime | None = None
    ) -> list[RunDayCosts]:
        """See ``Store.costs``."""
        which = [submissions.c.state == SubmissionState.COLLECTED]
        if namespace is not None:
            which.append(runs.c.namespace == namespace)
        if since is not None:
            which.append(submissions.c.collected_at >= since)
        with self._read() as tx:
            sums = _sums(tx, and_(*which))
            configs, assets = _provider_configs(tx, which), _assets(tx, which)
        return [_costs(row, configs, assets) for row in sums]


def _sums(tx: Transaction, which: ColumnElement[bool]) -> Sequence[RowMapping]:
    table = submissions.c
    # Instants are microseconds: a whole-number division gives days on every database.
    day = type_coerce(table.collected_at, BigInteger) // (_DAY // timedelta(microseconds=1))
    is_batch = table.reserved_requests > 0  # reused answers are in none
    tokens = table.input_tokens + table.output_tokens
    statement = (
        select(
            runs.c.ordinal,
            runs.c.run_id,
            day.label("day"),
            func.sum(case((is_batch, 1), else_=0)).label("batches"),
            func.sum(table.ok_count + table.failed_count).label("items"),
            func.sum(table.cost_usd).label("cost_usd"),
            func.sum(case((table.cost_usd.is_(None), 1), else_=0)).label("unpriced_batches"),
            func.sum(case((table.cost_usd.is_(None), tokens), else_=0)).label("unpriced_tokens"),
            *(func.sum(table[name]).label(name) for name in _USAGE),
        )
        .join(runs, runs.c.run_id == table.run_id)
        .where(which)
        .group_by(runs.c.ordinal, runs.c.run_id, "day")
        .order_by(runs.c.ordinal, "day")
    )
    return tx.execute(statement).mappings().all()


def _provider_configs(
    tx: Transaction, which: list[ColumnElement[bool]]
) -> dict[str, Mapping[str, Any]]:
    """Return what the runs' specs say of provider, model and price."""
    paid = select(submissions.c.run_id).join(runs, runs.c.run_id == submissions.c.run_id)
    statement = select(runs.c.run_id, runs.c.spec).where(runs.c.run_id.in_(paid.where(*which)))
    return {row.run_id: row.spec.get("provider_config", {}) for row in tx.execute(statement)}


def _assets(tx: Transaction, which: list[ColumnElement[bool]]) -> dict[str, set[str]]:
    paid = select(submissions.c.run_id).join(runs, runs.c.run_id == submissions.c.run_id)
    statement = (
        select(members.c.run_id, members.c.asset)
        .where(members.c.run_id.in_(paid.where(*which)))
        .distinct()
    )
    found: dict[str, set[str]] = defaultdict(set)
    for row in tx.execute(statement):
        found[row.run_id].add(row.asset)
    return found


def _costs(
    row: RowMapping,
    configs: Mapping[str, Mapping[str, Any]],
    assets: Mapping[str, set[str]],
) -> RunDayCosts:
    run_id = row["run_id"]
    return RunDayCosts(
        run_id=run_id,
        day=(_EPOCH + row["day"] * _DAY).date(),
        provider_config=configs[run_id],
        assets=tuple(sorted(assets.get(run_id, ()))),
        # PostgreSQL sums BIGINT into NUMERIC, hence int().
        batches=int(row["batches"]),
        items=int(row["items"]),
        usage=Usage(**{name: int(row[name]) for name in _USAGE}, cost_usd=row["cost_usd"]),
        unpriced_batches=int(row["unpriced_batches"]),
        unpriced_tokens=int(row["unpriced_tokens"]),
    )
