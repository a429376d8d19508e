"""Three servers behind the routers that people run: smg, sglang-router, vllm-router, unchanged. A server that is killed
or told to end costs no whole answer; a stream that it cuts goes on with `resume` through a router that passes such fields
on."""

import asyncio
import importlib.util
import pathlib
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

import fleet_load
from server_process import ServerProcess

NUM_ANSWERS = 90
NUM_CLIENTS = 12
MODULES = {"smg": "smg", "sglang-router": "sglang_router", "vllm-router": "vllm_router"}
LAUNCH = {"smg": ["launch"], "sglang-router": ["launch"], "vllm-router": []}
# The recipe of docs/scale.md. With five tries, the default, one answer in some hundreds meets the dead server in each.
RECIPE = ["--policy", "round_robin", "--health-check-endpoint", "/ready", "--health-check-interval-secs", "1",
          "--health-failure-threshold", "1", "--retry-max-retries", "10", "--retry-max-backoff-ms", "500"]
DRAIN = ["--drain-delay", "4"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(params=MODULES)
def router(request, program):
    """(url, servers) of a router with three servers."""
    name = request.param
    command = pathlib.Path(sys.executable).parent / name
    if importlib.util.find_spec(MODULES[name]) is None or not command.exists():
        pytest.skip(f"{name} is not installed: pip install -r tests/requirements-clients.txt")
    model = pathlib.Path(__file__).resolve().parents[2] / "models/pebble-e"
    servers, process = [], None
    try:
        for _ in range(3):
            servers.append(ServerProcess(program, str(model), "--device", "cpu", "--threads", "1", *DRAIN,
                                         "--metrics-prefix", "vllm"))
        url = f"http://127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [command, *LAUNCH[name], "--host", "127.0.0.1", "--port", url.rsplit(":", 1)[1], *RECIPE,
             "--prometheus-port", str(free_port()), "--worker-urls", *(server.url for server in servers)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_answer(url, process)
        yield url, servers
    finally:
        if process is not None:
            process.kill()
            process.wait()
        for server in servers:
            server.stop(signal.SIGKILL)


def wait_for_answer(url, process):
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "the router ended"
        assert time.monotonic() < deadline, "the router has no server"
        try:
            body = {"model": "pebble-e", "prompt": "x", "max_tokens": 1}
            if httpx.post(f"{url}/v1/completions", json=body, timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)


def ask_all(url, ask, at_a_quarter):
    """All questions by some clients; `at_a_quarter` is called when so many are answered. [(answer, problem)]"""
    results = [None] * NUM_ANSWERS
    waiting = iter(range(NUM_ANSWERS))
    num_done = 0

    async def client_of(client):
        nonlocal num_done
        for number in waiting:
            body = fleet_load.BODIES[number % len(fleet_load.BODIES)]
            try:
                results[number] = await ask(client, url, body)
            except httpx.HTTPError as error:
                results[number] = (None, repr(error))
            num_done += 1
            if num_done == NUM_ANSWERS // 4:
                at_a_quarter()

    async def main():
        async with httpx.AsyncClient(timeout=120) as client:
            await asyncio.gather(*(client_of(client) for _ in range(NUM_CLIENTS)))

    asyncio.run(main())
    return results


def check(results, right):
    lost = [problem for text, problem in results if problem is not None]
    assert not lost, f"{len(lost)} of {len(results)} are lost: {lost[:5]}"
    different = [number for number, (text, _) in enumerate(results) if text != right[number % len(right)]]
    assert not different, different


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
def test_whole_answers_survive_a_server(router, how):
    url, servers = router
    right = fleet_load.answers_of(servers[0].url)
    check(ask_all(url, fleet_load.whole, lambda: servers[1].process.send_signal(how)), right)


def test_streams_go_on_through_the_router_with_resume(router, package_dir):
    sys.path.insert(0, package_dir)
    from lapidary.ray.resumed_stream import ResumedStream

    num_cut = 0

    async def streamed(client, url, body):
        nonlocal num_cut
        stream = ResumedStream(fleet_load.CHAT, {**body, "stream": True})
        text = b""
        for attempt in range(20):
            try:
                async with client.stream("POST", url + fleet_load.CHAT, content=stream.body(),
                                         headers={"Content-Type": "application/json"}) as reply:
                    rest = b""
                    if reply.status_code == 200:
                        async for piece in reply.aiter_raw():
                            *events, rest = (rest + piece).split(b"\n\n")
                            for event in events:
                                # The router's own error event: the stream was cut.
                                if b'"error"' in event and b'"choices"' not in event:
                                    break
                                text += stream.feed(event + b"\n\n")
            except httpx.HTTPError:
                pass
            if stream.is_done or not stream.can_go_on:
                break
            num_cut += 1
            await asyncio.sleep(0.2)
        if not stream.is_done:
            return None, f"cut after {len(text)} bytes"
        chunks = [fleet_load.json.loads(event[6:]) for event in text.split(b"\n\n") if event.startswith(b"data: {")]
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]), None

    url, servers = router
    body = {**fleet_load.BODIES[0], "return_token_ids": True, "max_tokens": 3}
    if "token_ids" not in httpx.post(url + fleet_load.CHAT, json=body, timeout=60).text:
        pytest.skip("this router drops return_token_ids (and resume) from chats: cut streams are lost behind it")
    right = fleet_load.answers_of(servers[0].url)
    results = ask_all(url, streamed, lambda: servers[1].process.send_signal(signal.SIGKILL))
    print(f"{num_cut} streams were cut and gone on with")
    assert num_cut > 0, "the kill came between streams"
    check(results, right)
