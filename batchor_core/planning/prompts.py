"""From rows to prompts, a block at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from batchor_core.errors import BatchorError, MissingColumnError, SourceError
from batchor_core.model.items import BatchItem, PromptParts
from batchor_core.planning.templates import PromptTemplate

PROMPT_COLUMN = "prompt"
SYSTEM_COLUMN = "system_prompt"

Prompt = str | PromptParts


@dataclass(frozen=True, kw_only=True)
class PromptReader:
    """How a row becomes a prompt: by a function, by a template, or as it is.

    Attributes:
        build: Makes the prompt of an item.
        template: Makes it from columns, a whole block at once.
    """

    build: Callable[[BatchItem], Prompt] | None = None
    template: PromptTemplate | None = field(default=None)

    def check(self, columns: Sequence[str], label: str) -> None:
        """Make sure that the input has what prompts are made from.

        Raises:
            MissingColumnError: It has not.
            PromptTemplateError: The template names a column that is not there.
        """
        if self.template is not None:
            self.template.check(columns)
        elif self.build is None and PROMPT_COLUMN not in columns:
            raise MissingColumnError(
                f"no column {PROMPT_COLUMN!r} in {label}, which has: {', '.join(columns)}; name "
                "the prompt's column, give a template, or pass build_prompt"
            )

    def of_frame(
        self, frame: pl.DataFrame, items: Callable[[], Iterator[BatchItem]], first_row: int
    ) -> list[Prompt]:
        """Return the prompts of a frame's rows.

        Args:
            frame: The rows.
            items: Gives the same rows as items, for ``build``.
            first_row: Number of the first row in the run, for messages.

        Raises:
            SourceError: A row has no prompt, or ``build`` raised at it.
        """
        if self.build is not None:
            return _built(self.build, items(), first_row)
        if self.template is not None:
            prompts: Sequence[Any] = self.template.render_frame(frame).to_list()
        else:
            prompts = frame[PROMPT_COLUMN].to_list()
        systems = (
            frame[SYSTEM_COLUMN].to_list()
            if self.template is None and SYSTEM_COLUMN in frame.columns
            else None
        )
        return [
            _checked(prompt, systems[i] if systems else None, first_row + i)
            for i, prompt in enumerate(prompts)
        ]

    def of_items(self, items: Sequence[BatchItem], first_row: int) -> list[Prompt]:
        """Return the prompts of items; ``first_row`` as in ``of_frame``."""
        if self.build is not None:
            return _built(self.build, items, first_row)
        return [self._of_payload(item) for item in items]

    def _of_payload(self, item: BatchItem) -> Prompt:
        payload = item.payload
        if self.template is not None:
            if isinstance(payload, Mapping):
                return self.template.render(payload)
            raise SourceError(
                f"item {item.item_id!r} has a payload of type {type(payload).__name__}: a prompt "
                "template needs a mapping of columns"
            )
        if isinstance(payload, Mapping):
            payload = payload.get(PROMPT_COLUMN)
        if isinstance(payload, (str, PromptParts)):
            return payload
        raise SourceError(
            f"item {item.item_id!r} has a payload of type {type(item.payload).__name__}, which is "
            "no prompt: pass build_prompt, or a text as payload"
        )


def _built(
    build: Callable[[BatchItem], Prompt], items: Iterable[BatchItem], first_row: int
) -> list[Prompt]:
    prompts: list[Prompt] = []
    for item in items:
        try:
            prompts.append(build(item))
        except Exception as exc:
            # Any other text is left to the cause: a user's exception may well quote the row.
            why = str(exc) if isinstance(exc, BatchorError) else f"it raised {type(exc).__name__}"
            raise SourceError(
                f"build_prompt has no prompt for row {first_row + len(prompts)} (counted from 0), "
                f"item {item.item_id!r}: {why}; mend that and start again"
            ) from exc
    return prompts


def _checked(prompt: object, system: object, row: int) -> Prompt:
    if not isinstance(prompt, str):
        what = "is null" if prompt is None else f"is a {type(prompt).__name__}, not a text"
        raise SourceError(f"the prompt of row {row} (counted from 0) {what}")
    if system is None:
        return prompt
    return PromptParts(prompt=prompt, system_prompt=str(system))
