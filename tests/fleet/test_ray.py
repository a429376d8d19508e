"""lapidary.ray on a cluster of this machine: its API, prefixes, and replicas that are killed."""

import asyncio
import json
import os
import random
import signal
import time

import httpx
import pytest

import fleet_load
from ray_fleet import FLAGS, Fleet

pytest.importorskip("ray", reason="ray is not installed: pip install -r tests/requirements-clients.txt")


@pytest.fixture(scope="module")
def fleet(package_dir):
    fleet = Fleet(package_dir, "--replicas", "3", *FLAGS)
    yield fleet
    assert fleet.stop() == 0, "".join(fleet.log[-30:])


def test_the_gateway_speaks_the_api_of_a_replica(fleet):
    ask = {"messages": [{"role": "user", "content": "What is 48 + 17?"}], "temperature": 0}
    reply = httpx.post(f"{fleet.url}/v1/chat/completions", json=ask, headers={"X-Request-Id": "mine"}, timeout=60)
    assert reply.json()["choices"][0]["message"]["content"] == "48 + 17 = 65"
    assert reply.headers["x-request-id"] == "mine"
    assert [model["id"] for model in httpx.get(f"{fleet.url}/v1/models").json()["data"]] == ["pebble-e"]
    assert httpx.get(f"{fleet.url}/health").status_code == httpx.get(f"{fleet.url}/ready").status_code == 200
    # What is wrong is told in a replica's own words.
    for path, body, status in (("/v1/chat/completions", {"messages": "x"}, 400), ("/v1/nothing", {}, 404),
                               ("/v1/completions", {"model": "other", "prompt": "x"}, 404), ("/metrics", {}, 404)):
        reply = httpx.post(f"{fleet.url}{path}", json=body, timeout=60)
        assert reply.status_code == status and reply.json()["error"]["message"]
    reply = httpx.post(f"{fleet.url}/v1/messages", json={"max_tokens": 20, "messages": ask["messages"]}, timeout=60)
    assert reply.json()["content"][0]["type"] == "text"
    lines = httpx.post(f"{fleet.url}/api/chat", json={"model": "pebble-e", **ask}, timeout=60).text.splitlines()
    assert json.loads(lines[-1])["done"] is True


def test_later_turns_go_where_their_beginning_is(fleet):
    async def converse(client, number):
        messages, hits = [], []
        for turn in range(6):
            messages.append({"role": "user", "content": f"Number {number}, turn {turn}: tell me of the river. " * 4})
            body = {"messages": messages, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
            answer = (await client.post(f"{fleet.url}/v1/chat/completions", json=body)).json()
            messages.append(answer["choices"][0]["message"])
            usage = answer["usage"]
            hits.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
        return hits[1:]

    async def main():
        async with httpx.AsyncClient(timeout=120) as client:
            return await asyncio.gather(*(converse(client, number) for number in range(12)))

    later = [hit for hits in asyncio.run(main()) for hit in hits]
    # At its replica a turn finds at least half of its prompt, elsewhere next to nothing.
    found = sum(hit > 0.3 for hit in later)
    print(f"{found} of {len(later)} later turns found their beginning")
    assert found >= 0.95 * len(later), later


def test_replicas_killed_under_load_cost_no_answer(fleet, seconds):
    right = fleet_load.answers_of(fleet.url)
    choose, killed = random.Random(7), []

    def kill(number):
        if number > 0:
            replicas = fleet.replicas()
            if len(replicas) > 1:
                killed.append(choose.choice(replicas))
                os.kill(killed[-1], signal.SIGKILL)
        return 5 if number * 5 < seconds else None

    counts, problems = fleet_load.run(fleet.url, right, 24, seconds, kill)
    print(f"{len(killed)} replicas killed: {dict(counts)}")
    assert len(killed) >= 2 and counts["streamed"] > 20 and counts["whole"] > 10
    assert not problems, problems[:5]
    fleet.wait_for_replicas(3)


def test_an_answer_whose_client_has_gone_is_given_up(fleet):
    before = fleet.metric("generation_tokens_total")
    body = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with httpx.stream("POST", f"{fleet.url}/v1/completions", json=body, timeout=60) as reply:
            next(reply.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{fleet.url}/v1/completions", json={**body, "stream": False}, timeout=0.2)
    deadline = time.monotonic() + 60
    while fleet.metric("num_requests_running") > 0:
        assert time.monotonic() < deadline, "they are still computed"
        time.sleep(0.1)
    assert fleet.metric("generation_tokens_total") - before < 4 * 1900
