"""Validating answers with the user's own model."""

from dataclasses import dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, from_json, to_json

from batchor_core.planning.schema_compiler.compiled import CompiledSchema
from batchor_core.planning.schema_compiler.restore import UnrestorableAnswerError

_REPORTED_ERRORS = 5


@dataclass(frozen=True, kw_only=True)
class InvalidAnswer:
    """Why an answer is not what was asked for. The message never quotes the answer."""

    message: str


class AnswerValidator:
    """Turns answer texts into instances of the user's model; build one per model and process.

    Safe to share between threads. Text around the JSON, as a Markdown fence, is no valid answer:
    strict structured output does not produce it.

    Args:
        model: The user's output model.
        compiled: What the provider was asked for.
    """

    def __init__(self, model: type[BaseModel], compiled: CompiledSchema) -> None:
        self._model = model
        self._compiled = compiled
        self._validate_json = model.__pydantic_validator__.validate_json

    def validate(self, text: str | bytes) -> BaseModel:
        """Validate one answer.

        Raises:
            pydantic.ValidationError: If the text is no JSON or not what the model declares.
        """
        if self._compiled.restorer is not None:
            text = self._restored(text)
        answer: BaseModel = self._validate_json(text)
        return answer

    def check(self, text: str | bytes) -> BaseModel | InvalidAnswer:
        """Validate one answer; an invalid one is a value, as a failed item is."""
        try:
            return self.validate(text)
        except ValidationError as exc:
            return InvalidAnswer(message=_summary(exc))

    def _restored(self, text: str | bytes) -> str | bytes:
        try:
            answer = from_json(text)
        except ValueError:
            return text  # the model's own validator words the error
        try:
            # Back to JSON, because models validate JSON and Python objects by different rules.
            return to_json(self._compiled.restore(answer), inf_nan_mode="constants")
        except UnrestorableAnswerError as exc:
            error = InitErrorDetails(
                type=PydanticCustomError("unrestorable", str(exc)),
                input=None,
            )
            raise ValidationError.from_exception_data(self._model.__name__, [error]) from exc


def _summary(exc: ValidationError) -> str:
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(map(str, each['loc'])) or 'answer'}: {each['msg']}"
        for each in errors[:_REPORTED_ERRORS]
    ]
    if len(errors) > _REPORTED_ERRORS:
        shown.append(f"and {len(errors) - _REPORTED_ERRORS} more")
    return "; ".join(shown)
