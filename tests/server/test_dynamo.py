"""Dynamo's own router over our KV events. Skipped where it is not installed:

    pip install -r tests/requirements-clients.txt
    pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1

The second without dependencies, because one of them has no wheel. The router listens on all interfaces while it runs."""

import contextlib
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import pytest

GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def dynamo():
    pytest.importorskip("dynamo.select_service")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "dynamo.select_service", "--port", str(port)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/health").status_code == 200:
                break
        time.sleep(0.1)
    yield client
    process.terminate()
    process.wait(30)


@pytest.fixture
def folder():
    path = tempfile.mkdtemp(prefix="kv")
    yield path
    shutil.rmtree(path)


def test_append_only_chats_go_where_their_prefix_is(dynamo, start, folder):
    servers = {}
    for worker in (1, 2):
        config = {"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events{worker}",
                  "replay_endpoint": f"ipc://{folder}/replay{worker}"}
        servers[worker] = server = start("--kv-events-config", json.dumps(config))
        size = next(size for size in range(16, 1025, 16) if server.metric("cache_config_info", block_size=size))
        response = dynamo.post("/workers", json={
            "worker_id": worker, "endpoint": server.url, "block_size": size, "max_num_batched_tokens": 2048,
            "total_kv_blocks": 1000, "kv_events_endpoints": {"0": config["endpoint"]},
            "replay_endpoint": config["replay_endpoint"]})
        assert response.status_code == 201, response.text
    rng = random.Random(4)
    talks = [{"tokens": [2, 10 + index], "worker": None} for index in range(6)]
    turns = right = stayed = 0
    for _ in range(48):
        talk = rng.choice(talks)
        known = len(talk["tokens"]) - 1 if talk["worker"] else 0
        talk["tokens"] += [rng.randrange(5, 250) for _ in range(rng.randrange(40, 120))]
        if len(talk["tokens"]) > 900:
            continue
        deadline = time.monotonic() + 20
        while True:
            choice = dynamo.post("/select", json={"token_ids": talk["tokens"]}).json()
            predicted = choice["overlap"]["gpu"]
            if predicted >= known // size * size or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        server = servers[choice["worker_id"]]
        answer = server.post(GENERATE, json={"token_ids": talk["tokens"], "sampling_params": {
            "max_tokens": rng.randrange(1, 30), "ignore_eos": True}}).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        if known >= size:
            turns += 1
            right += abs(predicted - cached) <= size
            stayed += choice["worker_id"] == talk["worker"]
        talk["worker"] = choice["worker_id"]
        talk["tokens"] += answer["choices"][0]["token_ids"]
    assert turns >= 20
    assert right >= 0.99 * turns, f"{right} of {turns} predictions"
    assert stayed >= 0.95 * turns, f"{stayed} of {turns} stayed"
