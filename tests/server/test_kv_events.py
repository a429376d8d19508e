"""KV events as a router reads them: pyzmq and msgpack on the wire, requests on the other side."""

import json
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

import msgpack
import pytest
import zmq

GENERATE, CHAT = "/inference/v1/generate", "/v1/chat/completions"
PEBBLE = pathlib.Path(__file__).resolve().parents[2] / "models" / "pebble-e"
TOPIC = "kv@127.0.0.1:8000@tiny"
# One pixel.
DOT = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5"
       "ErkJggg==")


class Router:
    """What is cached, by the events alone: a tree of blocks."""

    def __init__(self, folder, context):
        self.live = context.socket(zmq.SUB)
        self.live.subscribe("kv@")
        self.live.connect(f"ipc://{folder}/events")
        self.replay = context.socket(zmq.DEALER)
        self.replay.connect(f"ipc://{folder}/replay")
        self.children = {}  # (parent, tokens, extra keys) -> hash
        self.keys = {}  # hash -> that
        self.events = []
        self.next = 0

    def apply(self, payload):
        seconds, events, rank = msgpack.unpackb(payload)
        assert abs(seconds - time.time()) < 600 and rank == 0
        for event in events:
            self.events.append(event)
            if event["type"] == "AllBlocksCleared":
                self.children, self.keys = {}, {}
            elif event["type"] == "BlockStored":
                size = event["block_size"]
                parent = event["parent_block_hash"]
                assert len(event["token_ids"]) == size * len(event["block_hashes"])
                for index, block in enumerate(event["block_hashes"]):
                    assert parent is None or parent in self.keys, "a block came before the one it follows"
                    assert block not in self.keys
                    tokens = tuple(event["token_ids"][index * size:(index + 1) * size])
                    self.keys[block] = key = parent, tokens, json.dumps(event["extra_keys"][index])
                    self.children[key] = parent = block
            else:
                for block in event["block_hashes"]:
                    del self.children[self.keys.pop(block)]

    def ask_for_replay(self):
        """Whatever is missing before what comes next."""
        self.replay.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert self.replay.poll(30_000), "the replay does not end"
            empty, topic, number, payload = self.replay.recv_multipart()
            number = int.from_bytes(number, "big")
            if not payload:
                assert (empty, topic, number) == (b"", b"", 2**64 - 1)
                return
            assert (empty, topic, number) == (b"", TOPIC.encode(), self.next)
            self.apply(payload)
            self.next += 1

    def listen(self, timeout=0):
        """Applies all that has come; how many batches."""
        count = 0
        while self.live.poll(0 if count else timeout):
            topic, number, payload = self.live.recv_multipart()
            number = int.from_bytes(number, "big")
            assert topic == TOPIC.encode()
            if number > self.next:
                self.ask_for_replay()
            if number == self.next:
                self.apply(payload)
                self.next += 1
            count += 1
        return count

    def predict(self, tokens, size, salt=None):
        parent, length = None, 0
        while length + size <= len(tokens):
            extra = [salt] if salt and not length else None
            parent = self.children.get((parent, tuple(tokens[length:length + size]), json.dumps(extra)))
            if parent is None:
                break
            length += size
        return length


@pytest.fixture
def folder():
    """Of sockets: their names must be short."""
    path = tempfile.mkdtemp(prefix="kv")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def routed(start, folder):
    """routed(*flags): a server that publishes, and a router that listens to it."""
    context = zmq.Context()

    def make(*flags, model=None, **fields):
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{folder}/events",
                  "replay_endpoint": f"ipc://{folder}/replay", "buffer_steps": 10000, "hwm": 100000, "topic": TOPIC}
        server = start("--kv-events-config", json.dumps({**config, **fields}), *flags, **({"model": model} if model else {}))
        return server, Router(folder, context)

    yield make
    context.destroy(linger=0)


def block_size(server):
    for size in (16 * step for step in range(1, 65)):
        if server.metric("cache_config_info", block_size=size) is not None:
            return size
    raise AssertionError("no block_size in cache_config_info")


def ask(server, tokens, max_tokens=1, **fields):
    """The answer's tokens, and how many of the prompt's were cached."""
    answer = server.post(GENERATE, json={
        "token_ids": tokens, **fields,
        "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0, "ignore_eos": True}}).json()
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def settle(router, is_settled):
    """Events come soon after an answer, not with it."""
    deadline = time.monotonic() + 20
    while not is_settled() and time.monotonic() < deadline:
        router.listen(timeout=50)
    return is_settled()


def test_a_prediction_is_what_is_cached_within_a_block(routed):
    server, router = routed("--max-model-len", "1000")
    size = block_size(server)
    rng = random.Random(5)
    talks = [{"tokens": [2], "salt": salt} for salt in (None, None, None, "mine", "yours")]
    right = turns = 0
    for _ in range(60):
        talk = rng.choice(talks)
        if len(talk["tokens"]) > 800:
            talk["tokens"] = [2]
        salt = {"cache_salt": talk["salt"]} if talk["salt"] else {}
        known = len(talk["tokens"]) - 1  # The last token's own values were not computed.
        talk["tokens"] += [rng.randrange(5, 250) for _ in range(rng.randrange(10, 120))]

        def predicted():
            return router.predict(talk["tokens"], size, talk["salt"])
        settle(router, lambda: predicted() >= known // size * size)
        guess = predicted()
        answer, cached = ask(server, talk["tokens"], rng.randrange(1, 30), **salt)
        talk["tokens"] += answer
        if known:
            turns += 1
            right += abs(guess - cached) <= size
            assert cached > 0 or known < 16
    assert turns > 40 and right >= 0.99 * turns, f"{right} of {turns}"
    [first] = {event["medium"] for event in router.events if event["type"] == "BlockStored"}
    assert first == "GPU"
    for event in router.events:
        if event["type"] == "BlockStored":
            assert list(event) == ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
                                   "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"]
            assert event["kv_cache_spec_kind"] == "full_attention" and event["block_size"] == size
            assert all(0 <= block < 2**64 for block in event["block_hashes"])


def test_no_prediction_is_stale_where_the_cache_is_too_small(routed):
    server, router = routed("--kv-cache-memory-bytes", "32MiB")
    size = block_size(server)
    rng = random.Random(6)
    talks = []
    for _ in range(16):
        tokens = [2] + [rng.randrange(5, 250) for _ in range(rng.randrange(200, 600))]
        talks.append(tokens + ask(server, tokens, 4)[0])
    assert settle(router, lambda: any(event["type"] == "BlockRemoved" for event in router.events))
    hits = 0
    for tokens in rng.sample(talks, len(talks)):
        for _ in range(2):  # All that the last answer changed is told before a replay ends.
            router.listen(timeout=50)
            router.ask_for_replay()
        guess = router.predict(tokens, size)
        _, cached = ask(server, tokens + [7])
        assert guess <= cached, "more was predicted than there was"
        assert cached - guess <= size
        hits += cached > 0
    assert 0 < hits < len(talks)


def test_two_servers_give_a_prompt_the_same_names(routed, start, tmp_path):
    server, router = routed()
    config = {"enable_kv_cache_events": True, "endpoint": f"ipc://{tmp_path}/events",
              "replay_endpoint": f"ipc://{tmp_path}/replay", "topic": TOPIC}
    other = start("--kv-events-config", json.dumps(config))
    context = zmq.Context()
    others = Router(tmp_path, context)
    prompt = [2] + [5 + index % 200 for index in range(400)]
    ask(other, [3] + prompt)
    for each, their_router in ((server, router), (other, others)):
        ask(each, prompt)
        their_router.ask_for_replay()
        assert settle(their_router, lambda: their_router.predict(prompt, block_size(each)) >= 256)
    assert set(router.keys) < set(others.keys)
    context.destroy(linger=0)


def test_a_replay_closes_a_gap_and_tells_a_newcomer_all(routed, folder):
    server, router = routed()
    size = block_size(server)
    for index in range(30):
        ask(server, [2] + [10 + index] * 300)
        if index in (7, 8, 20):
            router.live.poll(2000)
            while router.live.poll(0):
                router.live.recv_multipart()  # Lost on the way.
        router.listen(timeout=20)
    context = zmq.Context()
    newcomer = Router(folder, context)

    def is_complete():
        newcomer.ask_for_replay()
        router.ask_for_replay()
        return all(newcomer.predict([2] + [10 + index] * 300, size) >= 256 for index in range(30))
    assert settle(newcomer, is_complete)
    assert newcomer.next == router.next >= 30 and newcomer.keys == router.keys
    context.destroy(linger=0)


def test_images_are_named_as_a_rendered_prompt_names_them(routed):
    server, router = routed("--max-model-len", "2048", model=PEBBLE)
    size = block_size(server)
    text = "What is there to be seen in this image? Tell it in a few words, and then once more. " * 12
    body = {"messages": [{"role": "user", "content": [
        {"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": DOT}},
        {"type": "text", "text": text}]}], "max_tokens": 2}
    prompt = server.post(CHAT + "/render", json=body).json()
    [name] = prompt["features"]["mm_hashes"]["image"]
    [place] = prompt["features"]["mm_placeholders"]["image"]
    assert server.post(CHAT, json=body).status_code == 200
    assert settle(router, lambda: len(router.keys) >= len(prompt["token_ids"]) // size)
    extras = {}
    parent = None
    for begin in range(0, len(prompt["token_ids"]) // size * size, size):
        key = next(key for key in router.children if key[0] == parent)
        assert list(key[1]) == prompt["token_ids"][begin:begin + size]
        extras[begin], parent = json.loads(key[2]), router.children[key]
    assert len(name) == 64
    for begin, extra in extras.items():
        has_image = begin < place["offset"] + place["length"] and begin + size > place["offset"]
        assert extra == ([[name, place["offset"] - begin]] if has_image else None)
    assert any(extras.values()) and not all(extras.values())


def refused(request, checkpoint, *flags):
    done = subprocess.run([request.config.getoption("--lapidary"), "serve", checkpoint, "--port", "0", *flags],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("fields, words", [
    ({"enable_kv_cache_events": "yes"}, "enable_kv_cache_events"),
    ({"publisher": "nats"}, "publisher 'nats': must be zmq or null"),
    ({"endpoints": "tcp://*:5557"}, "there is no 'endpoints'"),
    ({"endpoint": "5557"}, "endpoint '5557': an endpoint looks like tcp://*:5557"),
    ({"replay_endpoint": "ipc:///no/such/folder/x"}, "replay_endpoint ipc:///no/such/folder/x: "),
    ({"buffer_steps": -1}, "buffer_steps")])
def test_wrong_configs_are_refused(request, checkpoint, folder, fields, words):
    config = {"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events", **fields}
    log = refused(request, checkpoint, "--kv-events-config", json.dumps(config))
    [line] = [line for line in log.splitlines() if "--kv-events-config" in line]
    assert words in line


def test_what_is_no_json_is_refused(request, checkpoint):
    assert "--kv-events-config" in refused(request, checkpoint, "--kv-events-config", "{")


def test_without_prefix_caching_there_is_nothing_to_publish(request, checkpoint):
    assert "without prefix caching" in refused(request, checkpoint, "--no-enable-prefix-caching", "--kv-events-config",
                                               '{"enable_kv_cache_events": true}')
