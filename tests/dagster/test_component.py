"""Batch assets, store, accounts and sensors that are declared in YAML."""

import inspect
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster.components.core.component_tree import ComponentTreeException
from dagster_shared.serdes import serialize_value

from batchor_core import BatchItem, ChunkPolicy, PromptParts, TokenPrice
from batchor_dagster import BatchAssetComponent, BatchorComponent, batch_asset, build_batch_sensors
from batchor_dagster.asset.checks import BatchChecks, CheckThreshold
from batchor_dagster.asset.declaration import BatchAssetDeclaration, declarations_of
from batchor_dagster.asset.options import OptionsWithDefaults, options_in
from batchor_dagster.components.sources import AssetSource
from batchor_dagster.constants import TAG_PARTITION_RANGE_END, TAG_PARTITION_RANGE_START
from batchor_dagster.resources import ProviderBatchResource
from batchor_dagster.testing import InProcessDaemon
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR
from tests.dagster.dg_project import DgProject, open_project
from tests.dagster.world import BATCH_SECONDS, KEY, MODEL, World, answers_asset, failure

ASSET = "batchor_dagster.BatchAssetComponent"
BATCHOR = "batchor_dagster.BatchorComponent"

VERDICT = """
title: Verdict
type: object
properties:
  label: {type: string, enum: ["1", "2"]}
  reason: {type: string, description: One sentence.}
required: [label, reason]
additionalProperties: false
"""

TICKETS = '''
"""Rows."""
import dagster as dg
import polars as pl

days = dg.StaticPartitionsDefinition(["d0", "d1"])

@dg.asset(partitions_def=days)
def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
    day = context.partition_key
    return pl.DataFrame({"id": ["a", "b"], "text": [f"{day} first", f"{day} second"]})
'''


@pytest.fixture
def project(tmp_path: Path) -> Iterator[DgProject]:
    """An empty project."""
    with open_project(tmp_path / "project") as opened:
        yield opened


@pytest.fixture
def wired(project: DgProject, world: World, monkeypatch: pytest.MonkeyPatch) -> DgProject:
    """A project whose store, account and sensors are those of the world, from YAML alone."""
    monkeypatch.setenv("SIM_KEY", KEY)
    monkeypatch.setenv("SIM_URL", world.sim.openai_base_url)
    monkeypatch.setenv("SIM_STATE", str(world.folder / "state.sqlite3"))
    project.component(
        "batchor",
        BATCHOR,
        f"""
        providers:
          openai:
            type: openai
            api_key: "{{{{ env.SIM_KEY }}}}"
            base_url: "{{{{ env.SIM_URL }}}}"
        state: "{{{{ env.SIM_STATE }}}}"
        results: {world.folder / "out"}
        poll_s: 0.001
        """,
    )
    return project


def daemon_of(world: World, definitions: dg.Definitions) -> InProcessDaemon:
    """Do the daemon's work for a project."""
    return InProcessDaemon(
        definitions,
        world.instance,
        store=world.store,
        namespace="default",
        pass_time=world.sim.advance_time,
        waits_s=(BATCH_SECONDS,),
    )


def declaration_of(project: DgProject, name: str = "answers") -> BatchAssetDeclaration:
    """Return what one of the project's batch assets declares."""
    return declarations_of(project.load().assets or ())[name]


def asset_of(project: DgProject, attributes: str, name: str = "answers") -> dg.AssetsDefinition:
    """Return the asset that a component with these attributes, and the usual ones, declares."""
    project.component(name, ASSET, f"llm_model: {MODEL}\n{attributes}")
    (asset,) = project.load().assets or ()
    assert isinstance(asset, dg.AssetsDefinition)
    return asset


def refusal(project: DgProject) -> str:
    """Return all that a user reads when the project is loaded."""
    with pytest.raises(ComponentTreeException) as caught:
        project.load()
    told, error = "", caught.value
    while error is not None:
        told, error = f"{told}\n{error}", error.__cause__  # type: ignore[assignment]  # None ends it
    return told


BARE = """
asset: {key: answers}
source: {path: rows.csv}
"""


def test_yaml_alone_asks_waits_and_materializes(wired: DgProject, world: World) -> None:
    """A user without Python would have assets that nobody advances."""
    wired.write("defs/tickets.py", TICKETS)
    schema = "\n".join(f"  {line}" for line in VERDICT.strip().splitlines())
    wired.component(
        "answers",
        ASSET,
        f"llm_model: {MODEL}\n"
        "asset: {key: answers}\n"
        "source: {asset: tickets}\n"
        'partitions: "PROJECT.defs.tickets:days"\n'
        'prompt_template: "Judge: {text}"\n'
        "id_column: id\n"
        "keep: {text: string}\n"
        f"output:\n{schema}\n",
    )
    definitions = wired.load()
    daemon = daemon_of(world, definitions)
    keys = [dg.AssetKey("tickets"), dg.AssetKey("answers")]
    assert daemon.materialize(keys, partition_key="d1").success
    assert world.materialized() == []
    daemon.finish()

    assert world.materialized() == ["d1"]
    table = world.table(partition="d1")
    assert table["item_id"].to_list() == ["a", "b"]
    assert table["text"].to_list() == ["d1 first", "d1 second"]
    assert set(table["label"]) <= {"1", "2"}
    assert world.run.spec["output_schema"]["properties"]["label"]["enum"] == ["1", "2"]


def test_one_pair_of_sensors_serves_yaml_and_python_alike(wired: DgProject, world: World) -> None:
    """A decorated asset beside components would wait for ever, or be cancelled as unknown."""
    wired.write("defs/answers/rows.csv", "text\nfirst\n")
    wired.component("answers", ASSET, f"{BARE}llm_model: {MODEL}\nprompt_template: 'J {{text}}'")
    wired.write(
        "defs/decorated.py",
        f"""
        import polars as pl
        from batchor_dagster import batch_asset

        @batch_asset(model="{MODEL}")
        def decorated() -> pl.DataFrame:
            return pl.DataFrame({{"prompt": ["Say something."]}})
        """,
    )
    definitions = wired.load()
    repository = definitions.get_repository_def()
    assert [sensor.name for sensor in repository.sensor_defs] == [
        ADVANCE_SENSOR,
        MATERIALIZE_SENSOR,
    ]
    daemon = daemon_of(world, definitions)
    assert daemon.materialize([dg.AssetKey("answers"), dg.AssetKey("decorated")]).success
    assert len(daemon.finish()) == 2
    assert world.materialized("answers") == world.materialized("decorated") == [None]


def test_sensors_reach_accounts_that_they_do_not_name(wired: DgProject, world: World) -> None:
    """Dagster gives a sensor only the resources that it requires: nothing would ever be polled."""
    wired.write("defs/answers/rows.csv", "text\nfirst\n")
    wired.component("answers", ASSET, f"{BARE}llm_model: {MODEL}\nprompt_template: 'J {{text}}'")
    definitions = wired.load()
    daemon_of(world, definitions).materialize([dg.AssetKey("answers")])
    world.provider_works()
    repository = definitions.get_repository_def()
    sensor = repository.get_sensor_def(ADVANCE_SENSOR)
    resources = repository.get_top_level_resources()
    assert sensor.required_resource_keys == {"batchor"}
    with dg.build_sensor_context(
        instance=world.instance,
        repository_def=repository,
        resources={key: resources[key] for key in sensor.required_resource_keys},
    ) as context:
        tick = sensor.evaluate_tick(context)

    assert len(tick.run_requests or ()) == 1


def test_sensors_without_the_assets_would_cancel_nothing(world: World) -> None:
    """A context that knows no assets would read as: all assets were removed, cancel their runs."""
    _, sensor = build_batch_sensors()
    with (
        dg.build_sensor_context(instance=world.instance, resources=world.resources) as context,
        pytest.raises(Exception, match="give the sensor's context a repository_def"),
    ):
        sensor.evaluate_tick(context)


def test_materialize_sensor_targets_batch_assets_and_what_hangs_on_them(wired: DgProject) -> None:
    """Every asset of a project would be shown as launched by our sensor, or none of them."""
    wired.component("answers", ASSET, f"{BARE}llm_model: {MODEL}")
    wired.write(
        "defs/others.py",
        """
        import dagster as dg

        @dg.asset(deps=["answers"])
        def report() -> None: ...

        @dg.asset
        def unrelated() -> None: ...
        """,
    )
    repository = wired.load().get_repository_def()
    selection = repository.get_sensor_def(MATERIALIZE_SENSOR).asset_selection
    assert selection is not None
    shown = selection.to_serializable_asset_selection(repository.asset_graph)
    found = shown.resolve(repository.asset_graph)
    assert {key.to_user_string() for key in found} == {"answers", "report"}


def test_text_is_a_template_only_where_it_says_so(
    project: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Braces of a prompt would be read as code, and a text of digits would become a number."""
    monkeypatch.setenv("LLM_MODEL", MODEL)
    monkeypatch.setenv("TONE", "dry")
    project.component(
        "answers",
        ASSET,
        BARE
        + """
llm_model: "{{ env.LLM_MODEL }}"
system_prompt: "Be {{ env.TONE }}. {% raw %}{{literal}}{% endraw %}"
prompt_template: |
  {text} as {"label": 1} {#no comment}
params: {stop: ["1"], temperature: 0}
schema_name: "12"
partitions: {type: static, partition_keys: ["1", "02"]}
""",
    )
    declaration = declaration_of(project)
    assert declaration.model == MODEL
    assert declaration.system_prompt == "Be dry. {{literal}}"
    assert declaration.prompt_template == '{text} as {"label": 1} {#no comment}\n'
    assert declaration.params == {"stop": ["1"], "temperature": 0}
    assert declaration.schema_name == "12"
    assert declaration.partitions_def == dg.StaticPartitionsDefinition(["1", "02"])


def test_unset_variable_in_a_text_is_said(project: DgProject) -> None:
    """The model would be called None, and only the provider would say so."""
    project.component("answers", ASSET, BARE + 'llm_model: "{{ env.NOT_SET_ANYWHERE }}"')
    told = refusal(project)
    assert "is the environment variable set" in told
    assert "defs.yaml" in told


def test_key_of_an_account_is_looked_up_when_it_is_used(
    wired: DgProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key would be kept in Dagster's snapshots, and be shown in its UI."""
    repository = wired.load().get_repository_def()
    text = serialize_value(RepositorySnap.from_def(repository))
    assert "SIM_KEY" in text
    assert KEY not in text

    monkeypatch.setenv("SIM_KEY", "sk-another")
    resources = repository.get_top_level_resources()
    with dg.build_resources({"openai": resources["openai"]}) as built:
        assert isinstance(built.openai, ProviderBatchResource)
        assert built.openai.api_key == "sk-another"


@pytest.mark.parametrize("text", ["Bearer {{ env.SIM_KEY }}", "{{ env.SIM_KEY }}{{ env.X }}"])
def test_key_in_other_text_is_refused(
    project: DgProject, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key would be stored because of how it was written."""
    monkeypatch.setenv("SIM_KEY", KEY)
    project.component("b", BATCHOR, f'providers: {{openai: {{type: openai, api_key: "{text}"}}}}')
    told = refusal(project)
    assert "alone, so that it is not stored" in told
    assert KEY not in told


def test_accounts_of_all_providers_and_the_store(project: DgProject) -> None:
    """A setting would be read from YAML, and lost on the way to the resource."""
    project.component(
        "batchor",
        BATCHOR,
        """
        providers:
          openai: {type: openai, project: p, enqueued_tokens: 5}
          azure: {type: openai, base_url: "https://x.example", api_version: "2025-01-01"}
          claude: {type: anthropic, prompt_cache: 1h}
          gemini: {type: gemini, backend: vertex, gcs_uri: "gs://b/f", location: eu}
        state: "{{ context.project_root }}/state.sqlite3"
        artifacts: s3://bucket/a
        namespace: team
        hold: suspended
        poll_s: 5
        lease_s: 60
        settle_s: 10
        budget_usd_per_day: 20
        listeners: ["batchor_core:LoggingListener"]
        sensors: stopped
        minimum_interval_seconds: 7
        """,
    )
    definitions = project.load()
    resources: dict[str, Any] = dict(definitions.resources or {})
    assert resources["openai"].project == "p"
    assert resources["openai"].enqueued_tokens == 5
    assert resources["azure"].api_version == "2025-01-01"
    assert resources["claude"].prompt_cache == "1h"
    assert resources["gemini"].gcs_uri == "gs://b/f"
    batchor = resources["batchor"]
    assert batchor.state == f"{project.root}/state.sqlite3"
    assert (batchor.artifacts, batchor.namespace, batchor.hold) == (
        "s3://bucket/a",
        "team",
        "suspended",
    )
    assert (batchor.poll_s, batchor.lease_s, batchor.settle_s) == (5, 60, 10)
    assert batchor.budget_usd_per_day == 20
    assert batchor.listeners == ["batchor_core:LoggingListener"]
    assert "io_manager" not in resources
    for sensor in definitions.get_repository_def().sensor_defs:
        assert sensor.minimum_interval_seconds == 7
        assert sensor.default_status is dg.DefaultSensorStatus.STOPPED


def test_files_of_a_partition_lie_beside_the_yaml(wired: DgProject, world: World) -> None:
    """Paths would depend on where Dagster was started, and partitions would share one file."""
    wired.write("defs/answers/rows/d0.csv", "id,text\nx,zero\n")
    wired.write("defs/answers/rows/d1.csv", "id,text\ny,one\nz,two\n")
    wired.component(
        "answers",
        ASSET,
        f"""
        asset: {{key: answers}}
        source: {{path: "rows/{{partition_key}}.csv"}}
        id_column: id
        partitions: {{type: static, partition_keys: [d0, d1]}}
        backfill_policy: {{type: single_run}}
        llm_model: {MODEL}
        prompt_template: "Judge: {{text}}"
        """,
    )
    daemon = daemon_of(world, wired.load())
    days = {TAG_PARTITION_RANGE_START: "d0", TAG_PARTITION_RANGE_END: "d1"}
    assert daemon.materialize([dg.AssetKey("answers")], tags=days).success
    daemon.finish()
    assert len(world.batches) == 1
    assert world.table(partition="d0")["item_id"].to_list() == ["x"]
    assert world.table(partition="d1")["item_id"].to_list() == ["y", "z"]


def test_rows_of_a_query_are_those_of_the_partition(
    wired: DgProject, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day would be asked with the rows of all days, or the database's URL would be stored."""
    database = world.folder / "tickets.sqlite3"
    with sqlite3.connect(database) as connection:
        connection.execute("create table tickets (id integer, day text, text text)")
        rows = [(1, "d0", "zero"), (2, "d1", "one"), (3, "d1", "two")]
        connection.executemany("insert into tickets values (?, ?, ?)", rows)
    connection.close()
    wired.component(
        "answers",
        ASSET,
        f"""
        asset: {{key: answers}}
        source:
          database: "{{{{ env.TICKETS }}}}"
          query: select id, text from tickets where day = :partition_key
          order_by: id
        id_column: id
        partitions: {{type: static, partition_keys: [d0, d1]}}
        llm_model: {MODEL}
        prompt_template: "Judge: {{text}}"
        """,
    )
    daemon = daemon_of(world, wired.load())
    unset = daemon.materialize([dg.AssetKey("answers")], partition_key="d1")
    assert "environment variable 'TICKETS' is not set" in failure(unset)
    monkeypatch.setenv("TICKETS", f"sqlite:///{database}")  # looked up when the query runs
    assert daemon.materialize([dg.AssetKey("answers")], partition_key="d1").success
    daemon.finish()
    assert world.table(partition="d1")["item_id"].to_list() == ["2", "3"]


PARTITIONS: dict[str, dg.PartitionsDefinition[Any]] = {
    "{type: hourly, start_date: '2026-01-01-00:00', minute_offset: 15}": (
        dg.HourlyPartitionsDefinition("2026-01-01-00:00", minute_offset=15)
    ),
    "{type: daily, start_date: '2026-01-01', end_date: '2026-02-01', timezone: Europe/Paris}": (
        dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-02-01", timezone="Europe/Paris")
    ),
    "{type: daily, start_date: 2026-01-01}": dg.DailyPartitionsDefinition("2026-01-01"),
    "{type: weekly, start_date: '2026-01-01', day_offset: 1}": (
        dg.WeeklyPartitionsDefinition("2026-01-01", day_offset=1)
    ),
    "{type: monthly, start_date: '2026-01-01', hour_offset: 2}": (
        dg.MonthlyPartitionsDefinition("2026-01-01", hour_offset=2)
    ),
    "{type: static, partition_keys: [a, b]}": dg.StaticPartitionsDefinition(["a", "b"]),
    "{type: dynamic, name: customers}": dg.DynamicPartitionsDefinition(name="customers"),
    "tests.dagster.world:DAYS": dg.StaticPartitionsDefinition([f"d{n}" for n in range(60)]),
    "\"{{ dg.DailyPartitionsDefinition('2026-01-01') }}\"": (
        dg.DailyPartitionsDefinition("2026-01-01")
    ),
}


@pytest.mark.parametrize("text", PARTITIONS)
def test_partitions_of_every_kind(project: DgProject, text: str) -> None:
    """A kind of partitions that Dagster has could not be declared in YAML."""
    asset = asset_of(project, f"{BARE}partitions: {text}")
    assert asset.partitions_def == PARTITIONS[text]


def test_every_attribute_reaches_the_asset(project: DgProject) -> None:
    """A field would be accepted in YAML and have no effect."""
    asset = asset_of(
        project,
        """
asset:
  key: answers
  group_name: llm
  description: Answers.
  owners: ["team:llm"]
  tags: {tier: gold}
  kinds: [gpt]
  deps: [glossary]
  metadata: {a: 1}
  code_version: v3
  automation_condition: "{{ dg.AutomationCondition.eager() }}"
source: {asset: tickets, load_as: lazy}
provider: gpt
output: tests.dagster.world:Verdict
max_output_tokens: 300
endpoint: chat
price: {input_usd: 1, output_usd: 2}
chunks: {max_requests: 5}
retries: {max_attempts: 2}
artifacts: {raw_results: drop}
on_unresolved: resubmit
on_lost: resend
reuse: namespace
max_failure_rate: 0.25
max_wait_hours: 48
budget_usd: 3
checks:
  failure_rate: null
  rows_answered: {error_above: 2, blocking: true}
cancel_on_termination: false
wait: true
io_type: eager
io_manager_key: lake
partitions: {type: static, partition_keys: [a]}
backfill_policy: {type: multi_run, max_partitions_per_run: 7}
retry_policy: {max_retries: 2, delay: 5}
op_tags: {size: small}
pool: llm
""",
    )
    (declared,) = declarations_of([asset]).values()
    assert declared.provider == "gpt"
    assert declared.output is not None
    assert declared.output.__name__ == "Verdict"  # type: ignore[union-attr]  # a model
    assert (declared.max_output_tokens, declared.endpoint) == (300, "chat")
    assert declared.price == TokenPrice(input_usd=1, output_usd=2)
    assert declared.chunks == ChunkPolicy(max_requests=5)
    assert declared.retries.max_attempts == 2
    assert declared.artifacts.raw_results == "drop"
    assert (declared.on_unresolved, declared.on_lost) == ("resubmit", "resend")
    assert (declared.reuse, declared.max_failure_rate) == ("namespace", 0.25)
    assert (declared.budget_usd, declared.max_wait_hours) == (3, 48)
    assert declared.checks == BatchChecks(
        failure_rate=None, rows_answered=CheckThreshold(error_above=2, blocking=True)
    )
    assert (declared.cancel_on_termination, declared.wait) == (False, True)
    assert declared.io_type == "eager"
    (spec,) = asset.specs
    assert (spec.group_name, spec.description, spec.owners) == ("llm", "Answers.", ["team:llm"])
    assert spec.tags["tier"] == "gold"
    assert spec.kinds == {"gpt"}
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"tickets", "glossary"}
    assert spec.metadata["a"] == 1
    assert spec.code_version == "v3"
    assert spec.automation_condition == dg.AutomationCondition.eager()
    assert asset.backfill_policy == dg.BackfillPolicy.multi_run(7)
    assert asset.op.retry_policy == dg.RetryPolicy(max_retries=2, delay=5)
    assert asset.op.tags["size"] == "small"
    assert asset.op.pool == "llm"
    assert asset.op.output_def_named("result").io_manager_key == "lake"


def test_what_yaml_leaves_out_is_as_in_python(project: DgProject) -> None:
    """The same asset would behave otherwise because it is declared in YAML."""
    asset = asset_of(project, BARE)
    (in_yaml,) = declarations_of([asset]).values()
    (in_python,) = declarations_of([answers_asset(output=None, partitions_def=None)]).values()
    for name in ("chunks", "artifacts", "reuse", "max_failure_rate", "checks", "io_type", "keep"):
        assert getattr(in_yaml, name) == getattr(in_python, name)
    (spec,) = asset.specs
    assert spec.kinds == {"llm", "openai"}
    assert spec.partitions_def is None
    assert list(asset_of(project, BARE + "checks: false").check_specs) == []


ELSEWHERE_IN_YAML = {
    "model": "llm_model",
    "partitions_def": "partitions",
    "ins": "source",
    **dict.fromkeys(("key", "name", "key_prefix", "deps", "metadata"), "asset"),
    **dict.fromkeys(("group_name", "description", "tags", "owners", "kinds"), "asset"),
    **dict.fromkeys(("automation_condition", "freshness_policy", "code_version"), "asset"),
}
ONLY_IN_PYTHON = {"translator"}


def test_every_keyword_of_the_decorator_is_a_field() -> None:
    """A keyword that is added to the decorator would be forgotten in YAML."""
    keywords = inspect.signature(batch_asset).parameters.keys() - ONLY_IN_PYTHON
    fields = {ELSEWHERE_IN_YAML.get(keyword, keyword) for keyword in keywords}
    assert fields == BatchAssetComponent.model_fields.keys()


def _prompt(item: BatchItem) -> PromptParts:
    return PromptParts(prompt=str(item.payload))


LINEAGE: dict[str, list[dg.TableColumnDep]] = {"output_text": []}


def test_options_that_are_python_objects_are_named(project: DgProject) -> None:
    """An asset with a prompt that is made in Python could not be declared in YAML."""
    project.component(
        "answers",
        ASSET,
        f"{BARE}llm_model: {MODEL}\nbuild_prompt: {__name__}:_prompt\n"
        f"column_lineage: {__name__}:LINEAGE",
    )
    declared = declaration_of(project)
    assert declared.build_prompt is _prompt
    assert declared.column_lineage == LINEAGE


def test_options_are_described_in_the_schema_of_the_yaml() -> None:
    """An editor would show the fields of a ``defs.yaml`` without a word on what they are for."""
    shown = BatchAssetComponent.model().model_json_schema()["properties"]
    for option in options_in(OptionsWithDefaults):
        assert shown[option.name]["description"] == option.description


REFUSED = {
    "import path": ("output: tests.dagster.world:Missing", "cannot be imported"),
    "no model": ("output: tests.dagster.world:World", "is no pydantic model"),
    "schema": ("output: {type: object, properties: {a: {not: {}}}}", "cannot be asked for"),
    "unknown field": ("temperature: 1", "temperature"),
    "unknown value": ("reuse: sometimes", "'partition', 'namespace' or 'off'"),
    "unknown partitions": ("partitions: {type: yearly, start_date: '2026'}", "yearly"),
    "offset of other partitions": (
        "partitions: {type: hourly, start_date: '2026-01-01-00:00', day_offset: 1}",
        "day_offset",
    ),
    "column type": ("keep: {text: no such type}", "no such type"),
    "twice": (
        "partitions: {type: dynamic, name: a}\nbackfill_policy: {type: multi_run, x: 1}",
        "x",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_its_name(project: DgProject, case: str) -> None:
    """A typing error would be ignored, or told as an error of ours."""
    text, words = REFUSED[case]
    project.component("answers", ASSET, f"llm_model: {MODEL}\n{BARE}{text}")
    told = refusal(project)
    assert words in told
    assert "answers" in told


def test_partitions_given_twice_are_refused(project: DgProject) -> None:
    """One of the two would win, silently."""
    project.component(
        "answers",
        ASSET,
        f"""
        asset: {{key: answers, partitions_def: {{type: static, partition_keys: [a]}}}}
        source: {{path: rows.csv}}
        partitions: {{type: static, partition_keys: [b]}}
        llm_model: {MODEL}
        """,
    )
    assert "give partitions, or asset.partitions_def, not both" in refusal(project)


def test_subclass_chooses_rows_and_looks(wired: DgProject, world: World) -> None:
    """A team could not build its own component on ours."""
    wired.write("defs/tickets.py", TICKETS)
    wired.write(
        "parts.py",
        """
        import dagster as dg
        import polars as pl
        from batchor_dagster import BatchAssetComponent

        class Seconds(BatchAssetComponent):
            word: str

            def execute(self, context, rows):
                assert context.partition_key == "d0"
                return rows.filter(pl.col("text").str.contains(self.word))

            def get_asset_spec(self, data):
                return super().get_asset_spec(data).replace_attributes(
                    key=data.spec.key.with_prefix("llm"), group_name=self.word
                )
        """,
    )
    wired.component(
        "answers",
        "PROJECT.parts.Seconds",
        f"""
        word: second
        asset: {{key: answers}}
        source: {{asset: tickets}}
        partitions: PROJECT.defs.tickets:days
        llm_model: {MODEL}
        prompt_template: "Judge: {{text}}"
        id_column: id
        """,
    )
    definitions = wired.load()
    daemon = daemon_of(world, definitions)
    key = dg.AssetKey(["llm", "answers"])
    assert daemon.materialize([dg.AssetKey("tickets"), key], partition_key="d0").success
    daemon.finish()
    assert world.table("llm/answers")["item_id"].to_list() == ["b"]
    assert next(iter(definitions.resolve_assets_def(key).specs)).group_name == "second"


def test_component_is_a_class_for_python_too() -> None:
    """Projects with a ``component.py`` would have to write YAML."""
    component = BatchAssetComponent(
        asset=dg.AssetSpec("answers", tags={"a": "b"}),
        source=AssetSource(asset="mart/tickets"),
        llm_model=MODEL,
    )
    (spec,) = component.build_asset().specs
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey(["mart", "tickets"])]
    assert spec.tags["a"] == "b"
    assert spec.kinds == {"llm", "openai"}
    assert BatchorComponent(providers={}).build_resources().keys() == {"batchor"}


def test_second_pair_of_sensors_is_refused(wired: DgProject) -> None:
    """Two pairs would launch everything twice."""
    wired.component("another", BATCHOR, "providers: {}")
    with pytest.raises(Exception, match="batchor"):
        wired.load()


def test_any_frame_that_an_io_manager_gives(project: DgProject) -> None:
    """An asset behind another IO manager could not be a source."""
    annotations = {"eager": pl.DataFrame, "lazy": pl.LazyFrame, "any": Any}
    for load_as, annotation in annotations.items():
        asset = asset_of(
            project, f"asset: {{key: answers}}\nsource: {{asset: t, load_as: {load_as}}}"
        )
        typed = asset.op.input_def_named("rows").dagster_type.typing_type
        assert typed == annotation
