"""Two code locations, ``east`` and ``west``, whose steps each have a process of their own."""

import dagster as dg

from tests.deployment.projects.parts import answers_asset, definitions, report_asset

east = definitions([answers_asset("east"), report_asset("east")], dg.multiprocess_executor)
west = definitions([answers_asset("west"), report_asset("west")], dg.multiprocess_executor)
