"""Whatever clients do, the others get their answers, and nothing is left behind.

A scenario is some hostile clients beside well-behaved ones, whose answers must equal what they get alone.
Afterwards the engine must be idle, and threads, sockets and memory where they were. A short run of each is a
test; LAPIDARY_SOAK_MINUTES=60 makes the last test repeat them all, with new seeds, for that long.
"""

import asyncio
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import hostile
import pytest
from raw_client import ask, close, connect, read_answer, read_head, request_bytes, reset, text_of

SOAK_MINUTES = float(os.environ.get("LAPIDARY_SOAK_MINUTES", "0"))
# A sanitizer makes the program slower and its memory larger; set by ./lapidary test --sanitize.
SANITIZED = os.environ.get("LAPIDARY_SANITIZED", "") != ""
MEGABYTE = 2**20
NUM_TOKENS = 12
ONE_THREAD = ["--threads", "1"]  # The model is tiny: a second thread would only wait.


def prompt(number, length=16):
    draw = random.Random(number)
    return [draw.randrange(10, 250) for _ in range(length)]


def request(number, max_tokens=NUM_TOKENS, **options):
    return {"prompt": prompt(number), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **options}


def long_request(number, **options):
    return request(number, max_tokens=200, **{"stream": True, **options})


class Watched:
    """A server, what it holds when idle, and what it answers to each request alone."""

    def __init__(self, server):
        self.server = server
        self.url = server.url
        self.alone = {}
        asyncio.run(self.check_honest(random.Random(0), count=8))
        self.server.wait_until_idle()
        self.num_threads = self.count_threads()
        self.num_files = self.count_files()

    def status(self, name):
        text = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1])

    def count_threads(self):
        return self.status("Threads")

    def count_files(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def memory(self):
        return self.status("VmRSS") * 1024

    async def expect(self, number, max_tokens=NUM_TOKENS):
        key = (number, max_tokens)
        if key not in self.alone:
            status, answer = await ask(self, request(number, max_tokens))
            assert status == 200, answer
            self.alone[key] = text_of(answer)
        return self.alone[key]

    async def check_honest(self, draw, count=12):
        """Well-behaved clients: complete answers, the same as alone."""
        async def client(number, stream):
            status, answer = await ask(self, request(number, stream=stream))
            assert status == 200, answer
            assert text_of(answer) == self.alone[(number, NUM_TOKENS)]

        numbers = [draw.randrange(16) for _ in range(count)]
        for number in range(16):
            await self.expect(number)
        await asyncio.gather(*(client(number, draw.random() < 0.7) for number in numbers))

    def check_nothing_is_left(self):
        self.server.wait_until_idle(60)
        assert self.server.process.poll() is None
        deadline = time.monotonic() + 20  # the kernel's and the lingering connections' time to close
        while self.count_files() > self.num_files and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.count_files() <= self.num_files, "connections stay open"
        assert self.count_threads() == self.num_threads
        failures = [line for line in self.server.log if re.search(r" E |Sanitizer|runtime error", line)]
        assert not failures, failures[:3]


@pytest.fixture(scope="module")
def watched(start):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A pool that is soon used up by the prefix cache: what grows then is a leak.
    yield Watched(start(*ONE_THREAD, "--max-model-len", "256", "--max-num-seqs", "64", "--write-timeout", "3",
                        "--kv-cache-memory-bytes", str(96 * MEGABYTE)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- scenarios: each takes (watched, draw) and returns when its clients are done ---------------------


async def leave(watched, draw):
    """One client that goes away: before, while or after its request is sent or its answer read."""
    reader, writer = await connect(watched)
    content = request_bytes(long_request(draw.randrange(1000), n=draw.choice([1, 1, 3]), stream=draw.random() < 0.7))
    kind = draw.randrange(5)
    if kind == 0:
        content = content[:draw.randrange(len(content))]
    writer.write(content)
    try:
        await writer.drain()
        if kind == 2:
            await asyncio.sleep(draw.random() * 0.05)
        elif kind == 3:
            await asyncio.wait_for(reader.read(draw.randint(1, 5000)), 5)
        elif kind == 4:
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 30)
    except (OSError, asyncio.TimeoutError):
        pass
    if draw.random() < 0.5:
        reset(writer)
    else:
        await close(writer)


async def disconnects(watched, draw, count=60):
    await asyncio.gather(watched.check_honest(draw), *(leave(watched, draw) for _ in range(count)))


KILLED_CLIENT = """
import json, socket, sys
host, port, content = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
clients = []
for _ in range(4):
    client = socket.create_connection((host, port))
    client.sendall(b"POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(content) + content)
    clients.append(client)
print(len(clients[0].recv(100)), flush=True)
sys.stdin.read()
"""


async def killed_clients(watched, draw, count=2):
    """Processes that die with four streams open each."""
    host, port = watched.url.removeprefix("http://").split(":")
    processes = []
    for _ in range(count):
        processes.append(await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED_CLIENT, host, port, json.dumps(long_request(draw.randrange(1000), n=4)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    honest = asyncio.create_task(watched.check_honest(draw))
    for process in processes:
        assert int(await asyncio.wait_for(process.stdout.readline(), 60)) > 0
        process.kill()
        await process.wait()
    await honest


async def read_all(reader, seconds):
    """What comes until the server closes or is silent for that long."""
    received = b""
    while True:
        try:
            data = await asyncio.wait_for(reader.read(65536), seconds)
        except (asyncio.TimeoutError, OSError):
            return received
        if not data:
            return received
        received += data


async def send_hostile(watched, content, seconds=0.3):
    reader, writer = await connect(watched)
    answers = asyncio.create_task(read_all(reader, seconds))
    try:
        writer.write(content)
        await writer.drain()
    except OSError:
        pass
    received = await answers
    await close(writer)
    statuses = {int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)}
    assert statuses <= {200, 204, 400, 403, 404, 405, 413, 431, 501}, (content[:300], received[:600])
    return received


async def in_groups(jobs, size=16):
    jobs = list(jobs)
    for begin in range(0, len(jobs), size):
        await asyncio.gather(*jobs[begin:begin + size])


async def broken_http(watched, draw, count=150):
    cases = [hostile.random_http(draw) for _ in range(count)] + list(hostile.BROKEN.values())
    await asyncio.gather(watched.check_honest(draw), in_groups((send_hostile(watched, case) for case in cases), 32))


async def broken_json(watched, draw, count=300):
    async def send(path, body):
        status, answer = await ask(watched, body, path)
        assert status in (200, 400, 404, 413), (path, body[:300], status, answer)
        if status != 200:
            if path.startswith("/api/"):
                assert answer["error"] and isinstance(answer["error"], str), answer
            else:
                assert answer["error"]["message"] and answer["error"]["type"], answer

    cases = [hostile.random_json(draw) for _ in range(count)]
    await asyncio.gather(watched.check_honest(draw), in_groups(send(*case) for case in cases))


async def slow_readers(watched, draw, count=12):
    """Clients that ask for megabytes and read nothing: dropped, while the others are served."""
    clients = []
    for _ in range(count):
        reader, writer = await connect(watched, receive_buffer=4096)
        writer.write(request_bytes(long_request(draw.randrange(1000), n=4, logprobs=20)))
        clients.append((reader, writer))
    for _ in range(3):
        await watched.check_honest(draw)
    # Each may hold what is unsent and what is being sent; the kernel's buffers are not ours. (A sanitizer keeps
    # freed memory for a while, up to 256 MB.)
    kept = 256 * MEGABYTE if SANITIZED else 0
    assert watched.memory() < watched.start_memory + count * 10 * MEGABYTE + kept
    for reader, writer in clients:
        await close(writer)


async def many_streams(watched, draw, num_streams=500, num_idle=0):
    idle = [await connect(watched) for _ in range(num_idle)]
    for _, writer in idle:
        writer.write(hostile.GET)
    for reader, _ in idle:
        status, headers = await read_head(reader)
        assert status == 200
        await reader.readexactly(int(headers["content-length"]))
    await watched.check_honest(draw, count=num_streams)
    assert watched.count_threads() == watched.num_threads, "a thread for a connection"
    for reader, writer in idle:  # every one of them still works
        writer.write(hostile.GET)
    for reader, writer in idle:
        status, _ = await read_head(reader)
        assert status == 200
        await close(writer)


SCENARIOS = [disconnects, killed_clients, broken_http, broken_json, slow_readers, many_streams]

ROUND = {disconnects: {"count": 20}, killed_clients: {"count": 1}, broken_http: {"count": 20},
         broken_json: {"count": 40}, slow_readers: {"count": 3}, many_streams: {"num_streams": 60}}


def play(watched, scenario, seed, **options):
    watched.start_memory = watched.memory()
    asyncio.run(scenario(watched, random.Random(f"{scenario.__name__} {seed}"), **options))
    watched.check_nothing_is_left()


# --- tests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_others_get_their_answers(watched, scenario):
    play(watched, scenario, seed=1, **(ROUND[scenario] if SANITIZED else {}))


def test_two_thousand_idle_connections_and_five_hundred_streams(watched):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 3000:
        pytest.skip(f"at most {resource.getrlimit(resource.RLIMIT_NOFILE)[1]} files may be open here")
    play(watched, many_streams, seed=2, num_idle=2000, num_streams=100 if SANITIZED else 500)


@pytest.mark.parametrize("case", hostile.SMUGGLING)
def test_no_request_hides_in_another(watched, case):
    received = asyncio.run(send_hostile(watched, hostile.SMUGGLING[case] + hostile.SMUGGLED, seconds=5))
    assert re.match(rb"HTTP/1\.1 (400|501) ", received), received
    assert received.count(b"HTTP/1.1 ") == 1, received


def test_a_pool_for_few_serves_many(start):
    """Far more is asked for than the pool holds: everything is answered, by preempting."""
    flags = ["--max-model-len", "256", "--kv-cache-memory-bytes", "16000000", "--max-queue", "12", "--check-kv"]
    watched = Watched(start(*ONE_THREAD, *flags))

    async def client(number):
        while True:  # The queue is shorter than the crowd.
            status, answer = await ask(watched, request(number, max_tokens=180, stream=number % 2 == 0))
            if status == 200:
                return text_of(answer)
            assert status == 503 and answer["error"]["code"] == "queue_full", answer
            await asyncio.sleep(0.05)

    async def crowd():
        alone = [await watched.expect(number, 180) for number in range(12)]
        together = await asyncio.gather(*(client(number % 12) for number in range(48)))
        assert together == alone * 4

    asyncio.run(crowd())
    assert watched.server.metric("num_preemptions_total") > 0
    watched.check_nothing_is_left()
    assert watched.server.stop() == 0


async def under_load(server, num_clients, after, **options):
    """Sends SIGTERM to a server full of requests; (status, answer) of every client."""
    async def send(number):
        reader, writer = await connect(server)
        writer.write(request_bytes(request(number, stream=number % 3 > 0, **options)))
        await writer.drain()
        return reader, writer

    async def receive(reader, writer):
        try:
            answer = await asyncio.wait_for(read_answer(reader), 60)
            assert await asyncio.wait_for(reader.read(), 10) == b"", "the connection closes behind it"
            return answer
        finally:
            await close(writer)

    # All of them are under way: a connection that has sent nothing yet is closed without an answer.
    connections = await asyncio.gather(*(send(number) for number in range(num_clients)))
    clients = [asyncio.create_task(receive(*connection)) for connection in connections]
    await asyncio.sleep(after)
    server.process.send_signal(signal.SIGTERM)
    return await asyncio.gather(*clients)


def test_sigterm_under_load_completes_every_answer(start):
    watched = Watched(start(*ONE_THREAD, "--max-num-seqs", "8"))

    async def play():
        alone = [await watched.expect(number, 60) for number in range(40)]
        answers = await under_load(watched.server, 40, after=0.1, max_tokens=60)
        for number, (status, answer) in enumerate(answers):
            if status == 200:
                assert text_of(answer) == alone[number]
            else:  # It came after the signal.
                assert status == 503 and answer["error"]["code"] == "shutting_down", answer
        return sum(status == 200 for status, _ in answers)

    assert asyncio.run(play()) >= 8
    assert watched.server.process.wait(30) == 0


def test_sigterm_ends_what_cannot_complete_with_an_error(start):
    server = start(*ONE_THREAD, "--max-num-seqs", "2", "--shutdown-timeout", "0.5")
    answers = asyncio.run(under_load(server, 40, after=0.3, max_tokens=900))
    num_ended = 0
    for status, answer in answers:
        if isinstance(answer, list):  # a stream: its head had gone out, its last event says why it ends
            assert status == 200
            if "error" in answer[-1]:
                assert answer[-1]["error"]["code"] == "shutting_down"
                num_ended += 1
        elif status != 200:
            assert status == 503 and answer["error"]["code"] == "shutting_down", answer
            num_ended += 1
    assert num_ended > 0
    assert server.process.wait(30) == 0


def test_memory_stays_flat(watched):
    """Rounds of everything: after a few, memory no longer grows."""
    sizes = []
    began = time.monotonic()
    while len(sizes) < 4 or time.monotonic() - began < 60 * SOAK_MINUTES:
        for scenario in SCENARIOS:
            play(watched, scenario, seed=10 + len(sizes), **({} if SOAK_MINUTES else ROUND[scenario]))
        sizes.append(watched.memory() // MEGABYTE)
        if SOAK_MINUTES:
            print(f"round {len(sizes)}: {sizes[-1]} MB after {time.monotonic() - began:.0f} s", flush=True)
    settled = len(sizes) // 2
    limit = 200 if SANITIZED else 24
    assert max(sizes[settled:]) - sizes[settled - 1] < limit, sizes
