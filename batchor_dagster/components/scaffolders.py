"""Write the files of ``dg scaffold defs``: complete ones that work as they are."""

from typing import Literal

import dagster as dg
from pydantic import BaseModel, Field

_MODELS = {
    "openai": "gpt-4.1-mini",
    "anthropic": "claude-haiku-4-5",
    "gemini": "gemini-2.5-flash",
}
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}

_BATCH_ASSET = """\
type: {type_name}

attributes:
  asset:
    key: {key}
    # group_name, description, owners, tags, kinds, automation_condition, deps: as of any asset

  # asset: the key of an upstream asset; or path: CSV, JSON Lines or Parquet files, beside this file
  # or at a URL; or database and query.
  source:
    path: rows.csv

  provider: {provider} # a key of the BatchorComponent's providers
  llm_model: {model}
  max_output_tokens: 500
  system_prompt: Answer in English.
  prompt_template: "Summarise: {{text}}" # {{text}} is a column of the rows

  # A JSON Schema, or a Pydantic model as package.module:Class; without it answers are texts.
  output:
    title: Summary
    type: object
    properties:
      summary:
        type: string
        description: One plain sentence.
    required: [summary]
    additionalProperties: false

  # keep: {{received_at: timestamp[us]}} # columns of the rows that the stored table keeps
  id_column: id # without it the row number is the id
  # partitions: {{type: daily, start_date: "2026-01-01"}}
  # budget_usd: 5
"""

_ROWS = """\
id,text
1,The invoice of May was sent twice.
2,"The app forgets my password, every day."
"""

_BATCHOR = """\
type: {type_name}

attributes:
  # Accounts, by the resource key that batch assets name. A key is looked up when it is used.
  providers:
    {provider}:
      type: {provider}
      api_key: "{{{{ env.{env} }}}}"

  # Runs, and the files that are sent and received; with workers on several machines use a
  # postgresql:// URL and an object store.
  state: "{{{{ context.project_root }}}}/var/batchor.sqlite3"
  artifacts: "{{{{ context.project_root }}}}/var/artifacts"

  # Parquet files of the project's assets; remove the line if the project has an IO manager.
  results: "{{{{ context.project_root }}}}/var/results"
"""


class ScaffoldParams(BaseModel):
    """Options of ``dg scaffold defs``."""

    provider: Literal["openai", "anthropic", "gemini"] = Field(
        default="openai", description="Whose batch API answers."
    )


class BatchAssetScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes the ``defs.yaml`` of a batch asset, named after its folder, and two rows to ask."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """Return the options."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write the file."""
        folder = request.target_path.parent if request.append else request.target_path
        _write(request, _BATCH_ASSET, key=folder.name, model=_MODELS[request.params.provider])
        rows = folder / "rows.csv"
        if request.scaffold_format == "yaml" and not rows.exists():
            rows.write_text(_ROWS)


class BatchorScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes the ``defs.yaml`` of the store, the accounts and the sensors."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """Return the options."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write the file."""
        _write(request, _BATCHOR, env=_KEYS[request.params.provider])


def _write(request: dg.ScaffoldRequest[ScaffoldParams], template: str, **names: str) -> None:
    if request.scaffold_format == "python":
        dg.scaffold_component(request)
        return
    content = template.format(
        type_name=request.type_name, provider=request.params.provider, **names
    )
    if request.append:  # the target is the file itself
        with request.target_path.open("a") as file:
            file.write(f"---\n{content}")
    else:
        (request.target_path / "defs.yaml").write_text(content)
