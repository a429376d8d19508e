"""A client over bare sockets: it can stop anywhere, and sees every byte of an answer."""

import asyncio
import contextlib
import json
import socket
import struct
from urllib.parse import urlparse

COMPLETIONS = "/v1/completions"
TIMEOUT = 600  # Seconds: the machine may be busy, the server sanitized.


async def connect(server, receive_buffer=None):
    """Returns asyncio's (reader, writer); a small receive buffer makes an unread answer back up soon."""
    address = urlparse(server.url)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    limit = 2**16
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        limit = receive_buffer
    await asyncio.get_running_loop().sock_connect(sock, (address.hostname, address.port))
    return await asyncio.open_connection(sock=sock, limit=limit)


def request_bytes(body, path=COMPLETIONS, headers=""):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(content)}\r\n\r\n".encode() + content


def reset(writer):
    """Closes with an RST instead of a FIN, as the end of a process with unread data does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def read_head(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ", 2)[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return status, headers


async def read_chunks(reader):
    while True:
        size = int(await reader.readline(), 16)
        data = await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
        if size == 0:
            return
        yield data


async def read_answer(reader):
    """(status, JSON or list of the stream's events). Raises unless it is complete to the last byte."""
    status, headers = await read_head(reader)
    if headers.get("transfer-encoding") != "chunked":
        return status, json.loads(await reader.readexactly(int(headers["content-length"])))
    text = b"".join([chunk async for chunk in read_chunks(reader)]).decode()
    if headers["content-type"] == "application/x-ndjson":
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines[-1]["done"] is True and text.endswith("\n"), lines[-3:]
        return status, lines
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if not event.startswith(":")]
    assert events[-2:] == ["[DONE]", ""], events[-3:]
    return status, [json.loads(event) for event in events[:-2]]


def text_of(answer):
    """The text of a completion, streamed or not."""
    parts = answer if isinstance(answer, list) else [answer]
    return "".join(choice["text"] for part in parts for choice in part["choices"])


async def ask(server, body, path=COMPLETIONS):
    """(status, answer) on a connection of its own."""
    reader, writer = await connect(server)
    try:
        writer.write(request_bytes(body, path))
        return await asyncio.wait_for(read_answer(reader), TIMEOUT)
    finally:
        await close(writer)
