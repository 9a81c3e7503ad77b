"""Request lines of the chat endpoint, which most compatible hosts know best."""

from typing import Any

from batchor_core.model.items import File, Image, PromptParts
from batchor_core.planning.media import load_media
from batchor_core.providers.encoding import encode_json, encode_sorted
from batchor_core.providers.openai.requests import TextEncoder, file_name, schema_spec


class ChatEncoder(TextEncoder):
    """Encodes prompts for ``/v1/chat/completions``."""

    endpoint = "chat"
    opening = b'{"role":"user","content":'
    closing = b"}]}"
    token_bound_name = "max_completion_tokens"  # noqa: S105 - no secret

    def head(self, system: str | None, params: dict[str, Any]) -> bytes:
        """Return model, parameters, output format and the system's message."""
        head = encode_sorted(self.settings(params))[:-1]
        if self._schema is not None:  # its fields in their own order, see ``ResponsesEncoder``
            spec = {"type": "json_schema", "json_schema": schema_spec(self._schema)}
            head += b',"response_format":' + encode_json(spec)
        head += b',"messages":['
        if system:
            head += encode_json({"role": "system", "content": system}) + b","
        return head

    def tail(self, parts: PromptParts) -> bytes:
        """Return the messages that follow the system's."""
        return encode_json(self.turns(parts))[1:] + b"}"

    def text_part(self, text: str, role: str) -> dict[str, Any]:  # noqa: ARG002 - the same for all
        """Return a text among other parts."""
        return {"type": "text", "text": text}

    def media_part(self, part: Image | File) -> dict[str, Any]:
        """Return a picture or document."""
        loaded = load_media(part)
        if isinstance(part, Image):
            detail = {"detail": part.detail} if part.detail else {}
            return {"type": "image_url", "image_url": {"url": loaded.data_url, **detail}}
        if loaded.url is not None:
            raise ValueError(
                "chat takes no document by its URL: give its path or data, or use the endpoint "
                "'responses'"
            )
        file = {"filename": file_name(part), "file_data": loaded.data_url}
        return {"type": "file", "file": file}
