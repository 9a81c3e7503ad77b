"""Find the Dagster runs that the sensors launched, by run key."""

from collections.abc import Iterable, Iterator

import dagster as dg

from batchor_dagster.constants import TAG_RUN_KEY

VALUES_PER_QUERY = 500


class LaunchedRuns:
    """The Dagster runs of some run keys during one tick; each key is looked up once.

    Args:
        instance: The Dagster instance.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._known: dict[str, dg.DagsterRun | None] = {}

    def look_up(self, run_keys: Iterable[str]) -> None:
        """Look up many keys in a few queries, so that ``find`` needs none."""
        unknown = [key for key in dict.fromkeys(run_keys) if key not in self._known]
        for keys in in_groups(unknown):
            self._known.update(dict.fromkeys(keys))
            runs = self._instance.get_runs(dg.RunsFilter(tags={TAG_RUN_KEY: keys}))
            for run in reversed(runs):  # a re-execution, which is newer, carries the same key
                self._known[run.tags[TAG_RUN_KEY]] = run

    def find(self, run_key: str) -> dg.DagsterRun | None:
        """Return the newest Dagster run of a key, or None if there is none."""
        if run_key not in self._known:
            self.look_up([run_key])
        return self._known[run_key]


def in_groups(values: list[str]) -> Iterator[list[str]]:
    """Yield the values in lists that fit into one SQL statement of any database."""
    for start in range(0, len(values), VALUES_PER_QUERY):
        yield values[start : start + VALUES_PER_QUERY]
