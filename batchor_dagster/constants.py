"""Names that are stored in Dagster: tags, the pool, the op jobs, metadata keys.

Run records and asset events hold these names, and later versions read them: never rename one; new
ones may be added.
"""

from enum import StrEnum

TAG_BATCH_RUN = "batchor/batch_run"
"""On materialize and advance runs: the batch run (``run_id``) that they work for."""

TAG_ASSET = "batchor/asset"
"""On materialize runs: the batch asset to be materialized, as ``a/b``. A Dagster run of a batch
asset without this tag for that asset is a request."""

TAG_KIND = "batchor/kind"
"""On every Dagster run that this package launches or records: a :class:`RunKind`."""

TAG_WAITER = "batchor/waiter"
"""On materialize runs: the waiter that they serve."""

TAG_LAUNCH = "batchor/launch"
"""On materialize runs: the number (0-based) of the launch among those of the waiter."""

TAG_SERVED_IN_PROCESS = "batchor/served_in_process"
"""On requests of the test kit, which does the sensors' work itself: they need no code location."""

TAG_WAITING_FOR = "batchor/waiting_for"
"""On holds: the backfill that they keep open."""

TAG_HOLD_GENERATION = "batchor/generation"
"""On holds: how many holds of this backfill ended before it was opened (0 for the first)."""

TAG_HOLD_CLOSED = "batchor/closed"
"""On holds that this package ended: ``success`` or ``cancelled``. A hold that is CANCELED without
this tag was ended by a user or by Dagster."""

TAG_BACKFILL = "dagster/backfill"
TAG_PARTITION = "dagster/partition"
TAG_PARTITION_DIMENSION_PREFIX = "dagster/partition/"
TAG_PARTITION_RANGE_START = "dagster/asset_partition_range_start"
TAG_PARTITION_RANGE_END = "dagster/asset_partition_range_end"
TAG_CODE_LOCATION = "dagster/code_location"
TAG_REPOSITORY = ".dagster/repository"
TAG_MAX_RETRIES = "dagster/max_retries"
TAG_PRIORITY = "dagster/priority"
TAG_RUN_KEY = "dagster/run_key"

HOLD_COPIED_TAGS = frozenset(
    {
        TAG_BACKFILL,
        TAG_CODE_LOCATION,
        TAG_PARTITION,
        TAG_PARTITION_RANGE_END,
        TAG_PARTITION_RANGE_START,
        TAG_REPOSITORY,
    }
)
"""Tags that a hold copies from the request that opens it, beside those of partition dimensions.
Dagster takes the partition of a canceled run's assets from its tag, and a backfill crashes if
partitioned assets have none."""

WAITING_POOL = "batchor_waiting"
"""The pool with zero slots that holds are queued on."""

ASSET_JOB = "__ASSET_JOB"
"""Dagster's own job of all assets of a code location, which the UI launches."""

ADVANCE_JOB = "batchor_advance"
"""The op job that collects, retries, submits and finishes: too heavy for a sensor."""

PAUSE_JOB = "batchor_pause"
RESUME_JOB = "batchor_resume"
CANCEL_JOB = "batchor_cancel"
"""The op jobs by which users control batch runs from the UI."""


class HoldKind(StrEnum):
    """How a backfill is kept open."""

    QUEUED = "queued"
    """A queued run on a pool without slots: users can terminate it from the UI. The default."""
    SUSPENDED = "suspended"
    """A suspended run (Dagster 1.13.26 or later): costs the run queue nothing, but the UI can
    only mark it as canceled."""
    NONE = "none"
    """No hold: Dagster marks the backfill as failed before the provider is done."""


class RunKind(StrEnum):
    """The kinds of Dagster runs that this package launches: the values of ``batchor/kind``."""

    ADVANCE = "advance"
    MATERIALIZE = "materialize"
    HOLD = "hold"
    CONTROL = "control"


META_BATCH_RUN = "batchor/batch_run"
META_PROVIDER = "batchor/provider"
META_MODEL = "batchor/model"
META_ROWS = "batchor/rows"
META_ROWS_OK = "batchor/rows_ok"
META_ROWS_FAILED = "batchor/rows_failed"
META_ROWS_REUSED = "batchor/rows_reused"
META_FAILURE_RATE = "batchor/failure_rate"
META_INVALID_OUTPUT_RATE = "batchor/invalid_output_rate"
META_ERROR_CODES = "batchor/error_codes"
META_INPUT_TOKENS = "batchor/input_tokens"
META_CACHED_INPUT_TOKENS = "batchor/cached_input_tokens"
META_OUTPUT_TOKENS = "batchor/output_tokens"
META_REASONING_TOKENS = "batchor/reasoning_tokens"
META_COST_USD = "batchor/cost_usd"
META_SAVING_USD = "batchor/saving_usd"
META_PROVIDER_BATCHES = "batchor/provider_batches"
META_CONSOLE_URL = "batchor/console_url"
META_CONSOLE_LINKS = "batchor/console_links"
META_PREVIEW = "batchor/preview"
META_SIZE_BYTES = "batchor/size_bytes"
META_REJECTED_URI = "batchor/rejected_uri"
META_WARN_ABOVE = "batchor/warn_above"
META_ERROR_ABOVE = "batchor/error_above"

# Observations have keys of their own: Dagster shows an asset's newest observation and its newest
# materialization as one table, in which the later of two equal keys wins.
META_PROGRESS_BATCH_RUN = "batchor/progress_batch_run"
META_PROGRESS_STATUS = "batchor/progress_status"
META_PROGRESS_ROWS = "batchor/progress_rows"
META_PROGRESS_ROWS_OK = "batchor/progress_rows_ok"
META_PROGRESS_ROWS_FAILED = "batchor/progress_rows_failed"
META_PROGRESS_ROWS_RETRYING = "batchor/progress_rows_retrying"
META_PROGRESS_ROWS_IN_FLIGHT = "batchor/progress_rows_in_flight"
META_PROGRESS_ROWS_READY = "batchor/progress_rows_ready"
META_PROGRESS_COST_USD = "batchor/progress_cost_usd"
META_PROGRESS_BATCHES = "batchor/progress_provider_batches"
META_PROGRESS_HINT = "batchor/progress_hint"
META_PROGRESS_BATCH_COUNT = "batchor/progress_batch_count"
META_PROGRESS_CONSOLE_URL = "batchor/progress_console_url"
META_PROGRESS_CONSOLE_LINKS = "batchor/progress_console_links"

META_OBSERVED_PARTITIONS = "batchor/observed_partitions"
"""On an observation of the asset as a whole: the partitions that it describes."""

META_CONTROLLED = "batchor/batch_runs"
META_CONTROLLED_COUNT = "batchor/batch_run_count"
"""On the output of ``batchor_pause``, ``batchor_resume`` and ``batchor_cancel``: the outcome for
each batch run."""

META_PREVIEW_BATCH_RUN = "batchor/preview_batch_run"
META_PREVIEW_ANSWERS = "batchor/preview_answers"
META_PREVIEW_ROWS = "batchor/preview_rows"
META_PREVIEW_ROWS_OF = "batchor/preview_rows_of"
META_PREVIEW_ROWS_FAILED = "batchor/preview_rows_failed"
META_PREVIEW_ROWS_REUSED = "batchor/preview_rows_reused"
META_PREVIEW_FAILURE_RATE = "batchor/preview_failure_rate"
META_PREVIEW_ERROR_CODES = "batchor/preview_error_codes"
META_PREVIEW_INPUT_TOKENS = "batchor/preview_input_tokens"
META_PREVIEW_OUTPUT_TOKENS = "batchor/preview_output_tokens"
META_PREVIEW_COST_USD = "batchor/preview_cost_usd"
META_PREVIEW_WHOLE_COST_USD = "batchor/preview_whole_cost_usd"

META_ESTIMATED_ROWS = "batchor/estimated_rows"
META_ESTIMATED_INPUT_TOKENS = "batchor/estimated_input_tokens"
META_ESTIMATED_OUTPUT_TOKENS = "batchor/estimated_output_tokens"
META_ESTIMATED_BATCHES = "batchor/estimated_provider_batches"
META_ESTIMATED_COST_USD = "batchor/estimated_cost_usd"
META_ESTIMATED_MAX_COST_USD = "batchor/estimated_max_cost_usd"
META_ESTIMATED_SAVING_USD = "batchor/estimated_saving_usd"

META_ROW_COUNT = "dagster/row_count"
META_PARTITION_ROW_COUNT = "dagster/partition_row_count"
META_COLUMN_SCHEMA = "dagster/column_schema"
META_COLUMN_LINEAGE = "dagster/column_lineage"
META_URI = "dagster/uri"

USAGE_CALLS = "calls"
USAGE_TOTAL_TOKENS = "total_tokens"
USAGE_PROMPT_TOKENS = "prompt_tokens"
USAGE_COMPLETION_TOKENS = "completion_tokens"
"""The names that ``dagster-openai`` uses, after ``<provider>.<model>.``."""


class CheckName(StrEnum):
    """The asset checks that come with a batch asset."""

    ROWS_ANSWERED = "rows_answered"
    FAILURE_RATE = "failure_rate"
    INVALID_OUTPUT_RATE = "invalid_output_rate"
    COST_WITHIN_BUDGET = "cost_within_budget"
