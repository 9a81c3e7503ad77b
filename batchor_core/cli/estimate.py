"""What a job would cost and how long it may take, before anything is sent."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import click

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.job_options import (
    Input,
    Output,
    Prompts,
    budget_options,
    input_options,
    job_of,
    output_options,
    policy_options,
    prompt_options,
)
from batchor_core.cli.model_options import Model, model_options
from batchor_core.cli.options import StatePlace, json_option, place_options
from batchor_core.errors import BudgetExceededError
from batchor_core.executor.budget import check_enforceable
from batchor_core.job import BatchJob
from batchor_core.model.policies import BudgetPolicy, ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.planning.estimate import BATCH_WINDOW_H, Estimate
from batchor_core.planning.prices import exceeds, usd
from batchor_core.runner import BatchRunner


@click.command(
    cls=ExampleCommand,
    example=(
        "batchor estimate --input tickets.csv --id-field id --model gpt-4.1-mini \\\n"
        '  --prompt-template "Summarise: {text}" --params \'{"max_output_tokens": 200}\''
    ),
)
@input_options
@prompt_options
@model_options
@output_options
@policy_options
@budget_options
@place_options
@json_option
def estimate(
    *,
    rows: Input,
    prompts: Prompts,
    model: Model,
    output: Output,
    chunk_policy: ChunkPolicy,
    retry_policy: RetryPolicy,
    timing: TimingPolicy,
    budget: BudgetPolicy,
    place: StatePlace,
    as_json: bool,
) -> Exit:
    """Tell what a job would cost, and send nothing.

    Reads the file to its end and packs it as 'batchor start' does, but records nothing; needs no
    key. 'batchor start --dry-run' tells the same. With --budget-usd the exit status is 1 if that
    would be too little.
    """
    job = job_of(
        rows,
        prompts,
        output,
        provider_config=model.config(),
        chunk_policy=chunk_policy,
        retry_policy=retry_policy,
        timing=timing,
        budget=budget,
    )
    return show_estimate(job, place, as_json=as_json)


def show_estimate(job: BatchJob, place: StatePlace, *, as_json: bool) -> Exit:
    """Print what a job comes to.

    Raises:
        BudgetExceededError: That is more than its budget.
        BudgetError: It has a budget, and nobody knows what it costs.
    """
    check_enforceable(job.budget, job.provider_config)
    with _open(place) as runner:
        found = runner.estimate(job)
    config = job.provider_config
    if as_json:
        named = {"provider": config.provider, "model": config.model, **asdict(found)}
        derived = {"saving_usd": found.saving_usd, "longest_h": found.longest_h}
        click.echo(json.dumps(named | derived))
    else:
        click.echo(f"Estimate for {config.model} of {config.provider}; nothing was sent:")
        click.echo("\n".join(f"  {line}" for line in _lines(found)))
    bound = job.budget.run_usd
    if bound is not None and found.reserved_usd is not None and exceeds(found.reserved_usd, bound):
        raise BudgetExceededError(
            f"the estimate of {usd(found.reserved_usd)} exceeds the budget of {usd(bound)}: "
            "'batchor start' would send nothing"
        )
    return Exit.OK


def _open(place: StatePlace) -> BatchRunner:
    """Open the state, in which a provider's limits may be remembered, but make no new file."""
    if place.db_path and not place.db_path.expanduser().exists():
        return BatchRunner("memory")
    return place.open()


def _lines(found: Estimate) -> Iterator[str]:
    yield (
        f"input:     {found.rows:,} rows, {found.input_tokens:,} tokens, {found.size_bytes:,} bytes"
    )
    most = "no upper bound is set"
    if found.max_output_tokens is not None:
        most = f"{found.max_output_tokens:,} at most"
    yield f"output:    {found.output_tokens:,} tokens assumed, {most}"
    yield f"batches:   {found.provider_batches:,}, of {found.chunks:,} chunks"
    yield f"cost:      {_cost(found)}"
    if found.saving_usd is not None and found.realtime_usd is not None:
        yield (
            f"real time: {usd(found.realtime_usd)}; batch mode saves {usd(found.saving_usd)} of it"
        )
    yield f"time:      {_time(found)}"
    yield "Earlier answers and duplicates are not taken off, retries are not added."


def _cost(found: Estimate) -> str:
    if found.low_usd is None or found.expected_usd is None:
        return "unknown, since the model's price is not known"
    source = "as you state it" if found.price_source == "stated" else f"of {found.price_source}"
    high = "no upper bound" if found.high_usd is None else f"{usd(found.high_usd)} at most"
    return (
        f"about {usd(found.expected_usd)} ({usd(found.low_usd)} without any answer, {high}), "
        f"at the price {source}"
    )


def _time(found: Estimate) -> str:
    if found.longest_h is None:
        return f"each batch may take {BATCH_WINDOW_H} h; no limit of the queue is known"
    often = "once" if found.queue_rounds == 1 else f"{found.queue_rounds:,} times"
    return (
        f"{found.longest_h:,} h at worst: the queue is filled to its limit {often}, and each batch "
        f"may take {BATCH_WINDOW_H} h"
    )
