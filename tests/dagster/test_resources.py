"""Resources: secrets, lifecycle, listeners and budgets, in real Dagster runs."""

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import httpx2
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_shared.serdes import serialize_value

from batchor_core import ConfigurationError, EnqueueLimitConfig, RetryPolicy, TokenPrice
from batchor_core.integration import WaiterState
from batchor_core.model.records import Event
from batchor_core.model.states import RunControlState, RunState
from batchor_dagster import (
    AnthropicBatchResource,
    BatchorResource,
    BatchParquetIOManager,
    GeminiBatchResource,
    HoldKind,
    OpenAIBatchResource,
    batchor_definitions,
)
from tests.dagster.world import KEY, ROWS, World, answers_asset, failure

PASSWORD = "pw-of-the-store-91c4e2"
WRONG_KEY = "sk-wrong-4b7719c0ffee"
RESOURCES = [
    BatchorResource,
    OpenAIBatchResource,
    AnthropicBatchResource,
    GeminiBatchResource,
    BatchParquetIOManager,
]
DEAR = TokenPrice(input_usd=20, output_usd=20, batch_discount=0.5)


class Recorder:
    """A listener that remembers what it was told, over all of this process."""

    made = 0
    kinds: list[str] = []  # noqa: RUF012 - shared on purpose: the path makes the object

    def __init__(self) -> None:
        Recorder.made += 1

    def on_event(self, event: Event) -> None:
        """Remember it."""
        Recorder.kinds.append(event.kind)


def files_with(folder: Path, secret: str) -> list[str]:
    """The files under a folder that hold a secret."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path.relative_to(folder)) for path in files if secret.encode() in path.read_bytes()]


def configure(world: World, monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Configure key, store and files by environment variables."""
    places = {"OF_KEY": KEY, "OF_STATE": str(world.folder / "state.sqlite3")}
    for name, value in {**places, "OF_FILES": str(world.folder / "files"), **variables}.items():
        monkeypatch.setenv(name, value)
    world.resources |= {
        "batchor": BatchorResource(
            state=dg.EnvVar("OF_STATE"), artifacts=dg.EnvVar("OF_FILES"), poll_s=0.001
        ),
        "openai": OpenAIBatchResource(
            api_key=dg.EnvVar("OF_KEY"), base_url=world.sim.openai_base_url
        ),
    }


class TestSecrets:
    def test_a_key_from_the_environment_is_nowhere_on_disk(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever reads the store, the files, a run's config or its log could spend money."""
        configure(world, monkeypatch)
        answers = answers_asset()
        assert world.request(answers).success
        world.finish(answers)
        assert world.table().height == ROWS
        assert list((world.folder / "files").rglob("*.parquet"))
        assert files_with(world.folder, KEY) == []
        assert all(KEY not in str(run.run_config) for run in world.instance.get_runs())

    def test_definitions_show_the_variables_name_and_not_its_value(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The UI shows the configuration of every resource."""
        configure(world, monkeypatch, OF_STATE=f"postgresql://me:{PASSWORD}@127.0.0.1:9/db")
        definitions = batchor_definitions([answers_asset()], resources=world.resources)
        shown = serialize_value(RepositorySnap.from_def(definitions.get_repository_def()))
        assert KEY not in shown
        assert PASSWORD not in shown
        assert "OF_KEY" in shown

    def test_a_refused_key_is_not_repeated(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The provider's refusal is stored as the reason of the pause, and shown."""
        configure(world, monkeypatch, OF_KEY=WRONG_KEY)
        answers = answers_asset()
        world.request(answers)
        world.advance_tick(answers)
        assert world.run.control is RunControlState.PAUSE
        assert "401" in (world.run.control_reason or "") or "key" in (
            world.run.control_reason or ""
        )
        assert files_with(world.folder, WRONG_KEY) == []

    def test_a_store_out_of_reach_does_not_tell_its_password(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A database that is down would print its password into every run's log."""
        url = f"postgresql://me:{PASSWORD}@127.0.0.1:9/db?connect_timeout=2"
        configure(world, monkeypatch, OF_STATE=url)
        result = world.request(answers_asset())
        assert not result.success
        assert "127.0.0.1" in failure(result)
        assert PASSWORD not in failure(result)
        assert files_with(world.folder, PASSWORD) == []

    @pytest.mark.parametrize("resource", [*RESOURCES[1:4]])
    def test_printing_a_resource_shows_no_secret(self, resource: type[Any]) -> None:
        """``context.log.info(f"{openai}")`` would put the key into the log."""
        assert KEY not in repr(resource(api_key=KEY)) + str(resource(api_key=KEY))

    def test_printing_store_and_io_manager_shows_no_secret(self) -> None:
        """The store's password and the bucket's key would be in the log."""
        store = BatchorResource(state=f"postgresql://me:{PASSWORD}@db/db")
        files = BatchParquetIOManager(base_path="s3://b", storage_options={"secret": PASSWORD})
        assert PASSWORD not in f"{store!r}{store}{files!r}{files}"

    @pytest.mark.parametrize("by", ["dagster", "hand"])
    def test_options_of_a_file_system_may_come_from_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
    ) -> None:
        """A bucket's key would have to be written into the code."""
        monkeypatch.setenv("OF_OPTION", PASSWORD)
        options = {"key": dg.EnvVar("OF_OPTION"), "inner": {"a": dg.EnvVar("OF_OPTION"), "b": 1}}
        files = BatchParquetIOManager(
            base_path=f"memory://{tmp_path.name}", storage_options=options
        )
        if by == "dagster":
            files = dg.build_resources({"files": files}).__enter__().files
        given = files.path_for(["table"]).storage_options
        assert {name: given[name] for name in options} == {
            "key": PASSWORD,
            "inner": {"a": PASSWORD, "b": 1},
        }

    def test_a_variable_that_is_not_set_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bucket would refuse a key that nobody has given."""
        monkeypatch.delenv("OF_OPTION", raising=False)
        options = {"key": dg.EnvVar("OF_OPTION")}
        files = BatchParquetIOManager(base_path="memory://base", storage_options=options)
        with pytest.raises(ConfigurationError, match="OF_OPTION is not set"):
            files.path_for(["table"])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
class TestLifecycle:
    def test_steps_and_ticks_close_what_they_open(self, world: World) -> None:
        """A code server ticks for weeks: it would run out of files and connections."""
        state = world.folder / "other.sqlite3"
        world.resources["batchor"] = BatchorResource(state=str(state), poll_s=0.001)
        answers = answers_asset()
        before = open_clients()
        assert world.request(answers).success
        assert open_files(state) == []
        assert open_clients() == before
        assert world.materialize_tick(answers) == []
        world.provider_works()
        requests = world.advance_tick(answers)
        assert requests
        assert open_files(state) == []
        assert open_clients() == before
        for asked in requests:
            assert world.launch(asked, answers).success
        assert open_files(state) == []
        assert open_clients() == before

    def test_a_failing_step_closes_what_it_opened(self, world: World) -> None:
        """Each failed run of an in-process executor would leave a connection behind."""
        state = world.folder / "other.sqlite3"
        world.resources["batchor"] = BatchorResource(state=str(state), poll_s=0.001)
        before = open_clients()
        result = world.request(answers_asset(prompt_template="{no_such_column}"))
        assert not result.success
        assert state.exists()
        assert open_files(state) == []
        assert open_clients() == before

    def test_a_misspelled_hold_is_named(self, world: World) -> None:
        """The request would fail with a Python error that names no setting."""
        world.resources["batchor"] = BatchorResource(hold="queud")
        with pytest.raises(ConfigurationError, match="'queud': give one of queued, suspended"):
            _ = world.resources["batchor"].hold_kind
        assert BatchorResource(hold="none").hold_kind is HoldKind.NONE


class TestListeners:
    @pytest.fixture(autouse=True)
    def recorder(self) -> Iterator[None]:
        """Forget what other tests were told."""
        Recorder.kinds.clear()
        yield
        Recorder.kinds.clear()

    def test_a_listener_is_told_by_steps_and_ticks(self, world: World) -> None:
        """A team's metrics would know nothing of the batches that run in Dagster."""
        path = f"{__name__}:Recorder"
        world.resources["batchor"] = BatchorResource(
            state=str(world.folder / "state.sqlite3"), poll_s=0.001, listeners=[path]
        )
        answers = answers_asset()
        world.request(answers)
        assert "submission.activated" in Recorder.kinds
        assert "submission.ended" not in Recorder.kinds
        world.provider_works()
        requests = world.advance_tick(answers)
        assert "submission.ended" in Recorder.kinds
        assert "run.closed" not in Recorder.kinds
        for asked in requests:
            world.launch(asked, answers)
        assert "run.closed" in Recorder.kinds
        assert Recorder.made == 1  # instruments of a metric are made once in a process

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("no_such_module:Listener", "'no_such_module:Listener' cannot be imported"),
            ("batchor_core:NoSuchListener", "cannot be imported"),
            ("batchor_core", "give package.module:name"),
            ("builtins:dict", "makes a dict, which has no on_event"),
        ],
    )
    def test_what_is_no_listener_is_said(self, world: World, path: str, message: str) -> None:
        """Metrics would be missing without a word."""
        world.resources["batchor"] = BatchorResource(
            state=str(world.folder / "state.sqlite3"), listeners=[path]
        )
        result = world.request(answers_asset())
        assert message in failure(result)
        assert world.batches == []

    def test_opentelemetry_is_one_line(self, world: World) -> None:
        """The listener that ships with the core could not be named."""
        pytest.importorskip("opentelemetry")
        world.resources["batchor"] = BatchorResource(
            state=str(world.folder / "state.sqlite3"),
            listeners=["batchor_core:OpenTelemetryListener", "batchor_core:LoggingListener"],
        )
        assert world.request(answers_asset()).success


class TestBudgets:
    def test_too_small_a_budget_fails_the_request_and_a_larger_one_goes_on(
        self, world: World
    ) -> None:
        """A partition would wait for ever for a batch that nobody may send."""
        options = {"max_output_tokens": 100, "price": DEAR}
        result = world.request(answers_asset(**options, budget_usd=0.001))
        assert re.search(
            r"was not sent: its estimate of \$0\.00\d+ exceeds the run's budget of \$0\.001;",
            failure(result),
        )
        assert world.batches == []
        assert [waiter.state for waiter in world.waiters] == [WaiterState.FAILED]
        assert world.run.state is RunState.CANCELLED
        answers = answers_asset(**options, budget_usd=1)
        assert world.request(answers).success
        world.finish(answers)
        assert world.materialized() == ["d0"]
        assert world.runs[-1].budget_usd == 1

    def test_waiting_in_the_step_fails_alike(self, world: World) -> None:
        """The blocking mode would leave a paused batch run behind."""
        options = {"max_output_tokens": 100, "price": DEAR, "wait": True}
        result = world.request(answers_asset(**options, budget_usd=0.001))
        assert "exceeds the run's budget of $0.001" in failure(result)
        assert world.run.state is RunState.CANCELLED
        assert world.open_waiters == 0

    def test_a_day_has_a_budget_of_its_own(self, world: World) -> None:
        """A backfill of many small batch runs would know no bound."""
        world.resources["batchor"] = BatchorResource(
            state=str(world.folder / "state.sqlite3"), poll_s=0.001, budget_usd_per_day=0.01
        )
        answers = answers_asset(max_output_tokens=100, price=DEAR)
        assert world.request(answers).success
        assert "the day's budget of $0.01 " in failure(world.request(answers, partition="d1"))
        assert len(world.batches) == 1
        world.finish(answers)
        assert world.materialized() == ["d0"]

    def test_a_budget_that_ends_on_the_way_is_shown_and_can_be_raised(self, world: World) -> None:
        """The partition would stand still, and nothing in Dagster would say why."""
        dear_input = TokenPrice(input_usd=1000, output_usd=0)
        options = {"price": dear_input, "retries": RetryPolicy(delay_s=0)}
        refused = failure(world.request(answers_asset(**options, budget_usd=1e-9)))
        estimate = float(re.findall(r"estimate of \$([\d.]+\d)", refused)[0])
        world.sim.faults(kind="invalid_json_answer", times=ROWS)
        answers = answers_asset(**options, budget_usd=estimate * 1.1)
        assert world.request(answers).success
        world.drive(answers)
        paused = [
            told for told in world.observations() if "pause" in told["batchor/progress_status"]
        ]
        assert "budget: the run's budget of $" in paused[-1]["batchor/progress_status"]
        assert world.materialized() == []
        more = answers_asset(**options, budget_usd=estimate * 10)
        assert world.request(more).success
        world.finish(more)
        assert set(world.materialized()) == {"d0"}
        assert len(world.batches) == 2

    def test_a_budget_without_a_price_is_refused(self, world: World) -> None:
        """A bound would be promised that nobody can hold."""
        options = {"model": "no-such-model", "budget_usd": 5}
        assert "price=" in failure(world.request(answers_asset(**options)))
        assert world.request(answers_asset(**options, price=DEAR)).success

    @pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
    def test_a_budget_that_means_nothing_is_refused(self, budget: float) -> None:
        """An asset would be without a bound that its author believes in."""
        with pytest.raises(ConfigurationError, match="budget_usd of 'answers'"):
            answers_asset(budget_usd=budget)


def test_limits_reach_the_provider_config(world: World) -> None:
    """A small account would be flooded: the limits of its queue were given for nothing."""
    world.resources["openai"] = OpenAIBatchResource(
        api_key=KEY, base_url=world.sim.openai_base_url, enqueued_tokens=5000, enqueued_requests=70
    )
    world.request(answers_asset())
    limits = EnqueueLimitConfig.model_validate(world.run.spec["provider_config"]["enqueue_limit"])
    assert limits == EnqueueLimitConfig(max_tokens=5000, max_requests=70)


@pytest.mark.parametrize("resource", RESOURCES)
def test_every_field_is_on_the_page(resource: type[Any]) -> None:
    """A setting that nobody can read of does not exist."""
    page = (Path(__file__).parents[2] / "docs" / "resources.md").read_text()
    section = page.partition(f"## `{resource.__name__}`")[2].partition("\n## ")[0]
    missing = [name for name in resource.model_fields if f"| `{name}` |" not in section]
    assert missing == []


def test_the_pages_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader would copy what does not work."""
    monkeypatch.setenv("BATCHOR_STATE", "state.sqlite3")
    page = (Path(__file__).parents[2] / "docs" / "resources.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert isinstance(names["headline"], dg.AssetsDefinition)


def open_files(path: Path) -> list[str]:
    """This process's open files whose names start with a path's."""
    links = list(Path("/proc/self/fd").iterdir())
    targets = [str(link.readlink()) for link in links if link.is_symlink()]
    return [target for target in targets if target.startswith(str(path))]


def open_clients() -> int:
    """How many HTTP clients of the SDKs are open."""
    gc.collect()
    clients = [one for one in gc.get_objects() if issubclass(type(one), httpx2.Client)]
    return sum(not client.is_closed for client in clients)
