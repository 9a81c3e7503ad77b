"""A code location whose steps are done by Celery workers: batch assets have a queue of their own.

Everything else, ``batchor_advance`` among it, goes to the queue that ``dagster-celery`` calls
``dagster``.
"""

import os

from dagster_celery import celery_executor

from tests.deployment.projects.parts import answers_asset, definitions, report_asset

BROKER = os.environ["CELERY_BROKER"]
executor = celery_executor.configured({"broker": BROKER, "backend": BROKER}, name="two_workers")
queue = definitions(
    [answers_asset("queue", op_tags={"dagster-celery/queue": "requests"}), report_asset("queue")],
    executor,
)
