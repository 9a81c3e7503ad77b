"""Routes of the simulator itself, under `/_sim`."""

from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from batchor_core.simulator.answers import NOTICE
from batchor_core.simulator.faults import FaultError
from batchor_core.simulator.state import SimulatorState


def admin_routes(state: SimulatorState) -> list[Route]:
    """Ledger, faults, reset, health and time jumps."""
    admin = _Admin(state)
    return [
        Route("/_sim/health", admin.health, methods=["GET"]),
        Route("/_sim/ledger", admin.ledger, methods=["GET"]),
        Route("/_sim/faults", admin.faults, methods=["GET", "POST", "DELETE"]),
        Route("/_sim/reset", admin.reset, methods=["POST"]),
        Route("/_sim/advance", admin.advance, methods=["POST"]),
    ]


class _Admin:
    def __init__(self, state: SimulatorState) -> None:
        self._state = state

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "simulator": NOTICE, **self._time()})

    async def ledger(self, request: Request) -> Response:
        entries = request.query_params.get("entries") in ("1", "true")
        return JSONResponse(await run_in_threadpool(self._state.ledger_report, entries=entries))

    async def faults(self, request: Request) -> Response:
        if request.method == "DELETE":
            self._state.clear_faults()
        elif request.method == "POST":
            try:
                self._state.add_faults(_rules(await _json(request)))
            except (FaultError, msgspec.DecodeError) as error:
                return _refusal(str(error))
        return JSONResponse({"rules": self._state.faults.describe()})

    async def reset(self, _: Request) -> Response:
        await run_in_threadpool(self._state.reset)
        return JSONResponse({"status": "ok"})

    async def advance(self, request: Request) -> Response:
        try:
            body = await _json(request)
            self._state.clock.advance(float(body["seconds"]))
        except (KeyError, TypeError, ValueError) as error:
            return _refusal(f"a JSON object with 'seconds' of 0 or more is needed: {error}")
        return JSONResponse(self._time())

    def _time(self) -> dict[str, Any]:
        clock = self._state.clock
        return {"now": clock.now(), "unix": clock.unix(clock.now())}


def _rules(body: Any) -> list[dict[str, Any]]:
    rules = body.get("rules", [body]) if isinstance(body, dict) else body
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise FaultError("a rule, a list of rules, or {'rules': [...]} is needed")
    return rules


async def _json(request: Request) -> Any:
    return msgspec.json.decode(await request.body())


def _refusal(message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, 400)
