"""Bytes that are no HTTP, or HTTP that is meant to hurt: slow, endless, cut off, pipelined, reset."""

import asyncio
import json
import re

import hostile
from raw_client import close, connect, reset
from target import ANSWER_SECONDS, MEGABYTE, in_groups, rounds

ALLOWED = {100, 200, 204, 400, 403, 404, 405, 408, 413, 415, 431, 501, 503}
FLAGS = ["--max-model-len", "256", "--request-timeout", "2", "--write-timeout", "2", "--idle-timeout", "2",
         "--max-connections", "64", "--kv-cache-memory-bytes", "32MB"]


def body_of(draw, **options):
    return json.dumps({"prompt": "Hello", "max_tokens": 100, "ignore_eos": True, **options}).encode()


def request_of(draw, **options):
    body = body_of(draw, **options)
    return hostile.post("/v1/completions", [f"Content-Length: {len(body)}"], body)


async def broken(target, draw):
    content = draw.choice([hostile.random_http(draw), draw.choice(list(hostile.BROKEN.values())),
                           draw.choice(list(hostile.SMUGGLING.values())) + hostile.SMUGGLED, draw.randbytes(3000)])
    received = await target.send(content)
    statuses = {int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)}
    assert statuses <= ALLOWED, (content[:300], received[:600])


async def slow(target, draw):
    """A few bytes now and then: the server's own timeouts end it."""
    reader, writer = await connect(target)
    content = request_of(draw)
    pace = len(content) // 8
    try:
        for begin in range(0, len(content), pace):
            writer.write(content[begin:begin + pace])
            await writer.drain()
            await asyncio.sleep(0.5)
    except ConnectionError:
        pass
    received = await asyncio.wait_for(reader.read(), ANSWER_SECONDS)
    assert not received or b" 408 " in received.split(b"\r\n")[0], received[:300]
    await close(writer)


async def silent(target, draw):
    """Connects and says nothing, or stops in the middle of a head or a body."""
    reader, writer = await connect(target)
    content = request_of(draw)
    writer.write(content[:draw.randrange(len(content))])
    try:
        await asyncio.wait_for(reader.read(), ANSWER_SECONDS)
    except ConnectionError:
        pass
    await close(writer)


async def unread(target, draw):
    """Asks for much and reads none of it."""
    reader, writer = await connect(target, receive_buffer=4096)
    for _ in range(draw.randint(1, 5)):
        writer.write(request_of(draw, n=4, logprobs=20, stream=True))
    await asyncio.sleep(3)
    await close(writer)


async def pipelined(target, draw):
    """Hundreds of requests at once on one connection, the last cut off."""
    content = (hostile.GET + request_of(draw, max_tokens=1)) * draw.randint(20, 100)
    await target.send(content[:-draw.randint(1, 50)])


async def vanishing(target, draw):
    reader, writer = await connect(target)
    writer.write(request_of(draw, n=draw.choice([1, 4]), stream=draw.random() < 0.5))
    try:
        await writer.drain()
        await asyncio.sleep(draw.random() * 0.1)
    except ConnectionError:
        pass
    draw.choice([reset, lambda writer: writer.close()])(writer)


async def announcing(target, draw):
    """Says that gigabytes will come."""
    length = draw.choice([2**31, 2**62, 10**9])
    content = hostile.post("/v1/completions", [f"Content-Length: {length}", "Expect: 100-continue"], b"{")
    received = await target.send(content)
    assert b" 413 " in received.split(b"\r\n")[0], received[:300]


KINDS = [broken, broken, broken, slow, silent, unread, pipelined, vanishing, announcing]


def test_http(start):
    target = start(*FLAGS)
    before = target.resident()
    for draw in rounds("http"):
        async def play():
            await in_groups((draw.choice(KINDS)(target, draw) for _ in range(120)), 60)

        asyncio.run(play())
        target.check()
    assert target.resident() < before + (32 + 96) * MEGABYTE


def test_more_connections_than_there_may_be(start):
    target = start(*FLAGS)

    async def play():
        connections = [await connect(target) for _ in range(300)]
        await asyncio.sleep(0.2)
        for _, writer in connections:
            await close(writer)

    asyncio.run(play())
    target.check()
