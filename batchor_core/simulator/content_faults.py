"""Faults of what is downloaded: other bytes, packed bytes, slow bytes.

Except for `gzip`, which packs every answer, these leave all but files as they are.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from batchor_core.simulator.faults import FaultRule
from batchor_core.simulator.route_faults import RouteKind

_BINARY = "application/octet-stream"
_REWRITES: dict[str, Callable[[bytes], bytes]] = {
    "bom": lambda content: b"\xef\xbb\xbf" + content,
    "crlf": lambda content: content.replace(b"\n", b"\r\n"),
    "blank_lines": lambda content: b"\n" + content.replace(b"\n", b"\n \r\n\n"),
    "no_last_newline": lambda content: content.removesuffix(b"\n"),
    "nul_tail": lambda content: content + bytes(1000),
    "utf16": lambda content: content.decode("utf-8", "replace").encode("utf-16"),
    "page": lambda _: b"<html><body>Something went wrong.</body></html>",
    "empty": lambda _: b"",
}


async def _rewrite(rule: FaultRule, _: Request, response: Response) -> Response:
    if not isinstance(response, FileResponse):
        return response
    content = await asyncio.to_thread(Path(response.path).read_bytes)
    return Response(_REWRITES[rule["variant"]](content), media_type=_BINARY)


async def _gzip(_: FaultRule, __: Request, response: Response) -> Response:
    if isinstance(response, FileResponse):
        content = await asyncio.to_thread(Path(response.path).read_bytes)
    else:
        content = bytes(response.body)
    headers = {"content-encoding": "gzip"}
    packed = await asyncio.to_thread(gzip.compress, content)
    return Response(packed, response.status_code, headers, media_type=response.media_type)


async def _drip(rule: FaultRule, _: Request, response: Response) -> Response:
    if not isinstance(response, FileResponse):
        return response
    content = await asyncio.to_thread(Path(response.path).read_bytes)
    length = {"content-length": str(len(content))}
    drops = _drops(content, int(rule["pieces"]), float(rule["pause_s"]))
    return StreamingResponse(drops, headers=length, media_type=_BINARY)


async def _drops(content: bytes, pieces: int, pause_s: float) -> AsyncIterator[bytes]:
    size = max(1, -(-len(content) // pieces))
    for start in range(0, len(content), size):
        yield content[start : start + size]
        await asyncio.sleep(pause_s)


CONTENT_KINDS = (
    RouteKind(
        name="rewrite_download",
        after=_rewrite,
        defaults={"variant": "bom"},
        allowed={"variant": tuple(_REWRITES)},
    ),
    RouteKind(name="gzip", after=_gzip),
    RouteKind(name="slow_drip", after=_drip, defaults={"pieces": 20, "pause_s": 0.05}),
)
