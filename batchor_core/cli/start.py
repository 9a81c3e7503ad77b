"""Starting a batch run."""

import shlex

import click

from batchor_core.cli.driving import drive, interruptible, send, wait_command
from batchor_core.cli.estimate import show_estimate
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
from batchor_core.cli.options import StatePlace, json_option, place_options, timeout_option
from batchor_core.cli.output import show_run
from batchor_core.ids import new_run_id
from batchor_core.job import OnChange, OnLost, OnUnresolved
from batchor_core.model.policies import (
    BudgetPolicy,
    ChunkPolicy,
    RetryPolicy,
    ReusePolicy,
    TimingPolicy,
)


@click.command(
    cls=ExampleCommand,
    example=(
        "batchor start --input tickets.csv --id-field id --model gpt-4.1-mini \\\n"
        '  --prompt-template "Summarise: {text}" --keep category --run-id tickets --wait'
    ),
)
@input_options
@prompt_options
@model_options
@output_options
@click.option(
    "--run-id",
    metavar="ID",
    help="Name of the batch run; given again, the command continues it.  [default: a new one]",
)
@click.option("--wait", is_flag=True, help="Drive it until it is finished, with a progress bar.")
@timeout_option
@policy_options
@click.option(
    "--reuse/--no-reuse",
    default=None,
    help="Take the answers of earlier runs to the very same requests, or none at all.  "
    "[default: those of a run that this one supersedes]",
)
@click.option(
    "--deduplicate",
    is_flag=True,
    help="Send rows that ask the very same once, and give all of them the answer.",
)
@click.option(
    "--on-unresolved",
    type=click.Choice(["wait", "resubmit", "fail"]),
    default="wait",
    show_default=True,
    help="What becomes of a batch whose existence the provider does not tell.",
)
@click.option(
    "--on-lost",
    type=click.Choice(["fail", "resend"]),
    default="fail",
    show_default=True,
    help="What becomes of rows whose answers the provider has lost; to resend is to pay again.",
)
@click.option(
    "--on-change",
    type=click.Choice(["refuse", "supersede"]),
    default="refuse",
    show_default=True,
    help="What becomes of a run of this id with other input or another declaration; a successor "
    "gets an id of its own (ID.2, ID.3, …).",
)
@budget_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Tell what it would cost, as 'batchor estimate', and send nothing.",
)
@place_options
@json_option
def start(
    *,
    rows: Input,
    prompts: Prompts,
    model: Model,
    output: Output,
    run_id: str | None,
    wait: bool,
    timeout_s: float | None,
    chunk_policy: ChunkPolicy,
    retry_policy: RetryPolicy,
    timing: TimingPolicy,
    reuse: bool | None,
    deduplicate: bool,
    on_unresolved: OnUnresolved,
    on_lost: OnLost,
    on_change: OnChange,
    budget: BudgetPolicy,
    dry_run: bool,
    place: StatePlace,
    as_json: bool,
) -> Exit:
    """Send the rows of a file to a model.

    Reads the file to its end first: nothing is sent if any row of it is unusable. Then sends
    what fits and ends; 'batchor wait' does the rest, at any time. With --wait it does both.

    Exit status: 0 all items ok (or still going, without --wait), 1 error (as a budget that
    is too small), 2 usage,
    3 finished with failed items, 4 paused, 5 cancelled, 6 timed out, 130 interrupted.
    """
    if timeout_s is not None and not wait:
        raise click.UsageError("Give --wait with --timeout.")
    job = job_of(
        rows,
        prompts,
        output,
        provider_config=model.config(),
        chunk_policy=chunk_policy,
        retry_policy=retry_policy,
        timing=timing,
        reuse=_reuse_policy(reuse, within_run=deduplicate),
        on_unresolved=on_unresolved,
        on_lost=on_lost,
        on_change=on_change,
        budget=budget,
    )
    if dry_run:
        return show_estimate(job, place, as_json=as_json)
    # Named here, so that a run that is interrupted while it reads its input can be continued.
    is_new, run_id = run_id is None, run_id or new_run_id()
    with place.open(create=True) as runner:
        with interruptible(_go_on(run_id, place)):
            run = runner.open(job, run_id=run_id)
            run_id = run.run_id  # a successor has an id of its own
            with runner.dropping_if_unusable(run, is_new=is_new):
                ended = drive(run, timeout_s) if wait else send(run)
        show_run(runner.store, run_id, as_json=as_json)
        if not run.is_finished and not wait:
            click.echo(f"Wait for it with: {wait_command(run_id, place)}", err=True)
    return ended


def _reuse_policy(choice: bool | None, *, within_run: bool) -> ReusePolicy:
    if choice is None:
        return ReusePolicy(within_run=within_run)
    return ReusePolicy(source="namespace" if choice else "off", within_run=within_run)


def _go_on(run_id: str, place: StatePlace) -> str:
    again = f"this command again, with --run-id {shlex.quote(run_id)}"
    return f"{wait_command(run_id, place)} (or {again})"
