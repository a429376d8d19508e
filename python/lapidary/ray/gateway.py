"""What clients of the application see: the HTTP API of ``lapidary serve``, answered by replicas that Ray chooses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

import aiohttp
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from .prefixes import prefix_keys
from .resumed_stream import Cut, ResumedStream, is_of_the_server

_logger = logging.getLogger("ray.serve")

# Servers that a request is tried on, and seconds between two tries, for Ray to notice that a replica has died.
_MAX_TRIES = 8
_PAUSE = 0.25
_READY_TIME = 5.0
_MAX_BODY_BYTES = 64 << 20
# Of a hop, not of the message.
_HOP_HEADERS = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
                "transfer-encoding", "upgrade", "host", "content-length", "content-encoding", "server", "date"}


class Lease:
    """A replica that Ray has chosen, and counts as busy until the lease is given back."""

    def __init__(self, calls: Any, replica_id: str, url: str) -> None:
        self._calls = calls
        self.replica_id = replica_id
        self.url = url
        self._reply: aiohttp.ClientResponse | None = None
        # The call says nothing more: it ends when it is cancelled, or its replica is lost.
        self._end = asyncio.ensure_future(calls.__anext__())
        self._end.add_done_callback(self._on_end)

    @classmethod
    async def take(cls, handle: Any, keys: list[int], avoided: list[str]) -> Lease:
        calls = handle.options(stream=True).lease.remote(keys, avoided)
        try:
            replica_id, url = await calls.__anext__()
        except BaseException:
            calls.cancel()
            raise
        return cls(calls, replica_id, url)

    def watch(self, reply: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
        """The reader of the reply is told when the replica is lost, also where its machine no longer answers."""
        self._reply = reply
        if self._end.done():
            reply.close()
        return reply

    def give_back(self) -> None:
        """The answer is complete, or will not be."""
        self._reply = None
        self._calls.cancel()

    def _on_end(self, end: asyncio.Future[Any]) -> None:
        if not end.cancelled():
            end.exception()  # or asyncio would say that nobody looked at it
        if self._reply is not None:
            self._reply.close()


class Gateway:
    """Handles requests. ``handles``: of each model by its name; the first is for requests that name none."""

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._handles = dict(handles)
        self._default = next(iter(self._handles))
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: Request) -> Response:
        """The answer to any request."""
        path = request.url.path.rstrip("/") or "/"
        if path == "/health" and request.method == "GET":
            return Response(status_code=200)
        if path == "/ready" and request.method == "GET":
            return Response(status_code=200 if await self._is_ready() else 503)
        if path == "/metrics":
            return _error(404, "each replica has metrics of its own; Ray's are at its dashboard", "not_found")
        if path == "/v1/models" and request.method == "GET":
            return await self._models(request)
        read = bytearray()
        async for piece in request.stream():
            read += piece
            if len(read) > _MAX_BODY_BYTES:
                return _error(413, f"the request has more than {_MAX_BODY_BYTES >> 20} MiB", "body_too_large")
        raw = bytes(read)
        body = _json_of(request, raw)
        name = body.get("model") if isinstance(body, Mapping) else None
        handle = self._handle_of(name)
        if handle is None:
            known = ", ".join(self._handles)
            return _error(404, f"there is no model '{name}'; there is {known}", "model_not_found")
        return await self._unless_gone(request, self._answer(request, path, raw, body, handle))

    async def _unless_gone(self, request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
        """The answer, which is given up when its client has gone."""
        working = asyncio.ensure_future(answer)
        gone = asyncio.ensure_future(request.receive())  # after the body only the end comes
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else Response(status_code=499)
        finally:
            gone.cancel()
            working.cancel()

    async def _is_ready(self) -> bool:
        """Whether each model has a replica."""
        try:
            for handle in self._handles.values():
                await asyncio.wait_for(handle.url.remote(), _READY_TIME)
        except asyncio.TimeoutError:
            return False
        return True

    def _handle_of(self, name: Any) -> Any:
        if not isinstance(name, str) or not name or len(self._handles) == 1:
            return self._handles[self._default]  # the server refuses names that it has not
        return self._handles.get(name)

    async def _models(self, request: Request) -> Response:
        models: list[Any] = []
        for handle in self._handles.values():
            async with (await self._client()).get(f"{await handle.url.remote()}/v1/models",
                                                  headers=_headers(request)) as reply:
                answer = await reply.json()
                if reply.status != 200:
                    return JSONResponse(answer, reply.status)
                models += answer["data"]
        return JSONResponse({"object": "list", "data": models})

    async def _answer(self, request: Request, path: str, raw: bytes, body: Any, handle: Any) -> Response:
        keys = prefix_keys(body)
        stream = None
        if isinstance(body, dict) and body.get("stream") is True:
            stream = ResumedStream(path, body)
        avoided: list[str] = []
        failure = "no replica answers"
        for attempt in range(_MAX_TRIES):
            lease = await Lease.take(handle, keys, avoided)
            try:
                reply = await self._send(request, path, lease, raw if stream is None else stream.body())
                kind = reply.headers.get("Content-Type", "")
                if stream is not None and kind.startswith("text/event-stream"):
                    events = self._events(request, path, handle, keys, stream, lease, reply, avoided)
                    return StreamingResponse(events, reply.status, _headers(reply), media_type=kind)
                # Ollama's streams are lines: they are passed on, and end where their server does.
                if kind.startswith("application/x-ndjson"):
                    return StreamingResponse(_passed_on(lease, reply), reply.status, _headers(reply), media_type=kind)
                content = await reply.read()
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                failure = f"a replica was lost: {error!r}"
                lease.give_back()
                avoided.append(lease.replica_id)
                await asyncio.sleep(_PAUSE * attempt)
                continue
            except BaseException:
                lease.give_back()
                raise
            lease.give_back()
            if reply.status == 503 and is_of_the_server(_error_in(content)) and attempt + 1 < _MAX_TRIES:
                avoided.append(lease.replica_id)
                await asyncio.sleep(_PAUSE * attempt)
                continue
            return Response(content, reply.status, _headers(reply))
        return _error(503, failure, "no_replica")

    async def _events(
        self, request: Request, path: str, handle: Any, keys: list[int], stream: ResumedStream, lease: Lease,
        reply: aiohttp.ClientResponse, avoided: list[str],
    ) -> AsyncIterator[bytes]:
        """What the client sees of a stream, whichever replicas it takes."""
        attempt = 0
        current: Lease | None = lease
        try:
            while True:
                before = stream.num_tokens
                try:
                    async for event in _events_of(reply):
                        yield event if stream.is_done else stream.feed(event)
                    if stream.is_done:
                        return
                    failure = "the replica's answer ended early"
                except (Cut, aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                    failure = repr(error)
                # One that went on for a while was no failed try.
                attempt = 1 if stream.num_tokens > before else attempt + 1
                _logger.warning("stream cut after %d tokens: %s", stream.num_tokens, failure)
                if current is not None:
                    current.give_back()
                    avoided.append(current.replica_id)
                    current = None
                while True:
                    if not stream.can_go_on or attempt >= _MAX_TRIES:
                        yield _event_of(503, f"the answer was cut and could not be continued: {failure}", "no_replica")
                        return
                    current = await Lease.take(handle, keys, avoided)
                    try:
                        reply = await self._send(request, path, current, stream.body())
                        if reply.status == 200:
                            break
                        content = await reply.read()
                        failure = f"HTTP {reply.status}: {content[:200]!r}"
                        if reply.status != 503:
                            attempt = _MAX_TRIES
                    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                        failure = repr(error)
                    current.give_back()
                    avoided.append(current.replica_id)
                    current = None
                    await asyncio.sleep(_PAUSE * attempt)
                    attempt += 1
        finally:
            reply.close()
            if current is not None:
                current.give_back()

    async def _send(self, request: Request, path: str, lease: Lease, body: bytes) -> aiohttp.ClientResponse:
        query = f"?{request.url.query}" if request.url.query else ""
        client = await self._client()
        reply = await client.request(request.method, f"{lease.url}{path}{query}", data=body or None,
                                     headers=_headers(request))
        return lease.watch(reply)

    async def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            # An idle connection may be closed by its server just as it is used again: one for each request.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        return self._session


async def _events_of(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole server-sent events, each with its empty line."""
    rest = b""
    async for piece in reply.content.iter_any():
        rest += piece
        *events, rest = rest.split(b"\n\n")
        for event in events:
            yield event + b"\n\n"


async def _passed_on(lease: Lease, reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in reply.content.iter_any():
            yield piece
    finally:
        reply.close()
        lease.give_back()


def _headers(message: Any) -> dict[str, str]:
    """Of a request or an answer, those that the next hop shall have."""
    return {name: value for name, value in message.headers.items() if name.lower() not in _HOP_HEADERS}


def _json_of(request: Request, raw: bytes) -> Any:
    if request.method != "POST" or request.headers.get("content-type", "").startswith("multipart/"):
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return None  # the server says what is wrong with it


def _error_in(content: bytes) -> Any:
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer.get("error") if isinstance(answer, Mapping) else None


def _error_json(status: int, message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error",
                      "param": None, "code": code}}


def _error(status: int, message: str, code: str) -> Response:
    return JSONResponse(_error_json(status, message, code), status)


def _event_of(status: int, message: str, code: str) -> bytes:
    return b"data: " + json.dumps(_error_json(status, message, code)).encode() + b"\n\n"
