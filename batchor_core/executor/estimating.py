"""Reading a source for its numbers: what a job would come to, with nothing written or sent."""

from batchor_core.errors import ConfigurationError
from batchor_core.executor.cycle import Attachment
from batchor_core.executor.plan import RunPlan
from batchor_core.executor.requests import RequestReader
from batchor_core.model.records import ChunkRecord, ScopeLimits
from batchor_core.planning.estimate import Estimate, Packing, Parcel, Pricing, estimate_of
from batchor_core.planning.tokens import TokenEstimator


def estimate_source(
    plan: RunPlan, attachment: Attachment, tokens: TokenEstimator, remembered: ScopeLimits
) -> Estimate:
    """Read a source to its end, a block at a time, and return what its rows come to.

    Args:
        plan: The bound job.
        attachment: Its source and prompts.
        tokens: Estimates input tokens.
        remembered: Limits of the scope that the provider has named before.

    Raises:
        ConfigurationError: The rows can be read only once.
        SourceError: A row cannot be read or sent.
    """
    source = attachment.source
    if not getattr(source, "reopenable", True):
        raise ConfigurationError(
            f"{source.label} can be read only once, and an estimate would use it up: give a list, "
            "a frame or a file"
        )
    reader, packing = RequestReader(plan, attachment), Packing(plan.limits)
    row = 0
    for block in source.blocks():
        read = reader.read(block, row)
        row += len(block)
        ratio = tokens.tokens_per_byte(plan.vocabulary, [body for _, body in read.encoded])
        for size_bytes, count in read.weights(ratio):
            packing.add(size_bytes, count)
    is_sampled = tokens.has_vocabulary(plan.vocabulary)
    return estimate_of(packing.parcels(), _pricing(plan, is_sampled), _queue(plan, remembered))


def estimate_chunks(plan: RunPlan, chunks: list[ChunkRecord], remembered: ScopeLimits) -> Estimate:
    """Return what the sealed rows of a run come to."""
    parcels = [
        Parcel(
            requests=chunk.item_count,
            size_bytes=chunk.requests.size_bytes,
            tokens=chunk.input_tokens,
        )
        for chunk in chunks
        if chunk.round == 0 and chunk.parent_seq is None
    ]
    # How their tokens were counted is not recorded: the wider uncertainty covers both ways.
    return estimate_of(parcels, _pricing(plan, is_sampled=False), _queue(plan, remembered))


def _pricing(plan: RunPlan, is_sampled: bool) -> Pricing:
    config = plan.job.provider_config
    known = "genai-prices" if plan.price is not None else None
    return Pricing(
        price=plan.price,
        source="stated" if config.price is not None else known,
        assumed_output_tokens=plan.job.assumed_output_tokens,
        output_token_bound=config.output_token_bound,
        is_sampled=is_sampled,
    )


def _queue(plan: RunPlan, remembered: ScopeLimits) -> ScopeLimits:
    own = plan.scope_limits
    return ScopeLimits(
        max_requests=_smaller(own.max_requests, remembered.max_requests),
        max_tokens=_smaller(own.max_tokens, remembered.max_tokens),
        max_batches=_smaller(own.max_batches, remembered.max_batches),
    )


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
