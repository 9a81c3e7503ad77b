"""The smallest code location, for any version of Dagster."""

import dagster as dg

from tests.deployment.projects.parts import answers_asset, definitions, report_asset

short = definitions([answers_asset("short"), report_asset("short")], dg.in_process_executor)
