#!/usr/bin/env python3
"""A fleet of simulated servers behind a router, under a trace of conversations: hit rate, latency, lost answers.

    tools/fleet.py --replicas 4 --router prefix --speed 0.5                 # ours: round-robin, least-load, prefix
    tools/fleet.py --replicas 4 --router smg --router-policy cache_aware    # or sglang-router, vllm-router from PyPI
    tools/fleet.py --replicas 4 --router prefix --kill-after 20             # one server dies
    tools/fleet.py --replicas 1000 --write-trace trace.jsonl
    lapidary bench fleet 31b --replicas 1000 --policy prefix --trace trace.jsonl

The servers are `lapidary serve MODEL --device simulated`: everything is real but the GPU, whose time they take without
its work. All times are those of the GPU: with --speed 0.5 a second of the trace takes two. The trace is drawn from a
seed: conversations that share system prompts, whose turns each come some time after the last answer, and of which some
begin in bursts. An answer counts as lost if it does not come, breaks off or has too few tokens.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
OURS = ("round-robin", "least-load", "prefix")
# By name: what comes before --worker-urls.
ROUTERS = {"smg": ["launch"], "sglang-router": ["launch"], "vllm-router": []}
WORDS = ("a the of to and in is it you that was for on are with as his they be at one have this from or had by hot but "
         "some what there we can out other were all your when up use word how said an each she which do their time if "
         "will way about many then them would write like so these her long make thing see him two has look more day could "
         "go come did my sound no most number who over know water than call first people may down side been now find").split()


def make_trace(options):
    """A list of conversations, as src/fleet/trace.h describes them."""
    draw = random.Random(options.seed)
    systems = [draw.randrange(*options.system_tokens) for _ in range(options.systems)]
    popularity = [1 / (rank + 1) for rank in range(options.systems)]
    count = max(1, round(options.rate * options.replicas * options.seconds))
    starts = []
    while len(starts) < count:
        at = draw.uniform(0, options.seconds)
        # A burst: many begin within a second and ask the same application.
        if draw.random() < 1 / 40:
            system = draw.choices(range(options.systems), popularity)[0]
            size = max(2, round(2 * options.replicas**0.5))
            starts += [(min(at + draw.random(), options.seconds), system) for _ in range(size)]
        else:
            starts.append((at, draw.choices(range(options.systems), popularity)[0]))
    trace = []
    for at, system in sorted(starts[:count]):
        num_turns = min(1 + int(draw.expovariate(1 / max(options.turns - 1, 1e-9))), 12)
        turns = [{"tokens": draw.randrange(20, 200), "answer": draw.randrange(50, 300),
                  "think": round(draw.expovariate(1 / options.think), 3)} for _ in range(num_turns)]
        trace.append({"at": round(at, 3), "system": system, "system_tokens": systems[system], "turns": turns})
    return trace


class Text:
    """Words that make about so many tokens."""

    def __init__(self, url):
        sample = self.words(0, 2000)
        body = json.dumps({"prompt": sample}).encode()
        request = urllib.request.Request(url + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            self.per_word = json.load(response)["count"] / 2000

    @staticmethod
    def words(seed, count):
        draw = random.Random(seed)
        return " ".join(draw.choices(WORDS, k=count))

    def of(self, seed, num_tokens):
        return self.words(seed, max(1, round(num_tokens / self.per_word)))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A simulated server; ready once `wait` has returned."""

    def __init__(self, options):
        self.port = free_port()
        self.log = open(options.logs / f"{self.port}.log" if options.logs else os.devnull, "wb")
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [options.lapidary, "serve", options.model, "--device", "simulated", "--simulate", options.simulate,
             "--simulate-speed", str(options.speed), "--port", str(self.port), "--max-model-len",
             str(options.max_model_len), "--access-log", "off", "--metrics-prefix", "vllm"],
            stdout=self.log, stderr=self.log)

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"a server ended with {self.process.returncode}; --logs DIRECTORY keeps what it said")
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"a server was not ready after {seconds} s")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def program_of(router):
    program = shutil.which(router, path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise SystemExit(f"{router} is not installed: pip install {router}, or take --router prefix")
    return program


class ForeignRouter:
    """A router from PyPI in front of the servers: it chooses."""

    def __init__(self, options, servers):
        self.port = free_port()
        command = [program_of(options.router), *ROUTERS[options.router], "--host", "127.0.0.1", "--port", str(self.port),
                   "--prometheus-port", str(free_port()), "--worker-urls", *(server.url for server in servers)]
        if options.router_policy:
            command += ["--policy", options.router_policy]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5).close()
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{options.router} does not serve: {' '.join(command)}") from None
                time.sleep(0.2)

    def choose(self, messages):
        return 0, self.port

    def done(self, place, has_failed):
        pass

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


class OurRouter:
    """The policies of src/fleet/policy.h, in the client. A server that fails is not asked again."""

    BLOCK = 256  # characters, for prefixes of text

    def __init__(self, options, servers):
        self.policy = options.router
        self.ports = [server.port for server in servers]
        self.loads = [0] * len(servers)
        self.dead = set()
        self.next = 0
        self.holders = {}
        self.draw = random.Random(1)

    def least_loaded(self, places):
        least = min(self.loads[place] for place in places)
        return self.draw.choice([place for place in places if self.loads[place] == least])

    def by_prefix(self, messages, alive):
        text = "\0".join(message["content"] for message in messages)
        blocks = [hash(text[:end]) for end in range(self.BLOCK, len(text) + 1, self.BLOCK)]
        chosen = None
        for block in reversed(blocks):
            places = [place for place in self.holders.get(block, ()) if place not in self.dead]
            if places:
                chosen = self.least_loaded(places)
                break
        mean = sum(self.loads[place] for place in alive) / len(alive)
        if chosen is None or self.loads[chosen] > 1.25 * mean + 4:
            chosen = self.least_loaded(alive)
        for block in blocks:
            self.holders.setdefault(block, set()).add(chosen)
        return chosen

    def choose(self, messages):
        alive = [place for place in range(len(self.ports)) if place not in self.dead]
        if not alive:
            raise ConnectionError("no server is left")
        if self.policy == "round-robin":
            place = alive[self.next % len(alive)]
            self.next += 1
        elif self.policy == "least-load":
            place = self.least_loaded(alive)
        else:
            place = self.by_prefix(messages, alive)
        self.loads[place] += 1
        return place, self.ports[place]

    def done(self, place, has_failed):
        self.loads[place] -= 1
        if has_failed:
            self.dead.add(place)

    def stop(self):
        pass


async def events_of(reader):
    """The data of a chunked stream of server-sent events."""
    text = b""
    while True:
        size = int((await reader.readline()).split(b";")[0] or b"0", 16)
        if size == 0:
            return
        text += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole, text = text.split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: "):
                yield event[6:]


class Broken(Exception):
    """An answer that does not come or is not whole."""


async def ask(port, model, messages, num_tokens):
    """The answer's text, usage, and when its first token and its end came."""
    body = json.dumps({"model": model, "messages": messages, "max_tokens": num_tokens, "ignore_eos": True,
                       "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}).encode()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    except OSError as error:
        raise Broken(f"no connection: {error}") from None
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if not re.match(r"HTTP/1\.1 200 ", head):
            raise Broken(head.splitlines()[0])
        pieces, usage, first, finish = [], {}, None, None
        async for event in events_of(reader):
            if event == b"[DONE]":
                break
            chunk = json.loads(event)
            if "error" in chunk:
                raise Broken(str(chunk["error"]))
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", []):
                finish = choice.get("finish_reason") or finish
                content = choice["delta"].get("content")
                if content:
                    first = first or time.monotonic()
                    pieces.append(content)
        if finish is None or usage.get("completion_tokens") != num_tokens:
            raise Broken(f"broke off: {finish}, {usage}")
        return "".join(pieces), usage, first, time.monotonic()
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise Broken(f"cut: {error}") from None
    finally:
        writer.close()


class Run:
    def __init__(self, options, trace, router, text):
        self.options = options
        self.trace = trace
        self.router = router
        self.text = text
        self.start = time.monotonic() + 0.5
        self.ttft, self.tpot, self.lost = [], [], []
        self.prompt_tokens = self.hit_tokens = self.answer_tokens = self.retries = 0
        self.end = self.start

    async def answer(self, messages, num_tokens):
        asked = time.monotonic()
        for attempt in range(1 + self.options.retries):
            place, port = self.router.choose(messages)
            try:
                answer, usage, first, end = await ask(port, self.options.served, messages, num_tokens)
            except Broken:
                self.router.done(place, has_failed=True)
                if attempt == self.options.retries:
                    raise
                self.retries += 1
            else:
                self.router.done(place, has_failed=False)
                break
        scale = 1e3 * self.options.speed
        self.ttft.append(scale * (first - asked))
        self.tpot.append(scale * (end - first) / (num_tokens - 1))
        self.prompt_tokens += usage["prompt_tokens"]
        self.hit_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.answer_tokens += num_tokens
        self.end = max(self.end, end)
        return answer

    async def converse(self, idx, conversation):
        await asyncio.sleep(max(0, self.start + conversation["at"] / self.options.speed - time.monotonic()))
        system = self.text.of(f"system {conversation['system']}", conversation["system_tokens"])
        messages = [{"role": "system", "content": system}]
        for number, turn in enumerate(conversation["turns"]):
            messages.append({"role": "user", "content": self.text.of(f"{idx} {number}", turn["tokens"])})
            try:
                answer = await self.answer(messages, turn["answer"])
            except (Broken, ConnectionError) as error:
                self.lost.append(str(error))
                return
            messages.append({"role": "assistant", "content": answer})
            await asyncio.sleep(turn["think"] / self.options.speed)

    async def play(self, servers):
        tasks = [asyncio.create_task(self.converse(idx, talk)) for idx, talk in enumerate(self.trace)]
        if self.options.kill_after is not None:
            await asyncio.sleep(0.5 + self.options.kill_after / self.options.speed)
            servers[0].process.kill()
        await asyncio.gather(*tasks)

    def report(self):
        seconds = self.options.speed * (self.end - self.start)
        return {"router": self.options.router, "policy": self.options.router_policy, "model": self.options.model,
                "replicas": self.options.replicas, "speed": self.options.speed, "duration_s": round(seconds, 1),
                "answers": len(self.ttft), "lost": len(self.lost), "reasons": sorted(set(self.lost))[:5],
                "retries": self.retries, "prompt_tokens": self.prompt_tokens, "answer_tokens": self.answer_tokens,
                "hit_rate": round(self.hit_tokens / max(self.prompt_tokens, 1), 4),
                "ttft_ms": percentiles(self.ttft), "tpot_ms": percentiles(self.tpot)}


def percentiles(values):
    values = sorted(values)
    return {f"p{percent}": round(values[min(len(values) * percent // 100, len(values) - 1)], 1) if values else None
            for percent in (50, 90, 99)}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument("--lapidary", default=str(ROOT / "build/lapidary"), help="the program (default: build/lapidary)")
    fleet.add_argument("--model", default="31b", help="preset to simulate (default: 31b)")
    fleet.add_argument("--simulate", default="h200", help="card (default: h200)")
    fleet.add_argument("--speed", type=float, default=1.0, help="times the card's; below 1 for many servers on few cores")
    fleet.add_argument("--replicas", type=int, default=4, help="servers (default: 4)")
    fleet.add_argument("--max-model-len", type=int, default=16384)
    fleet.add_argument("--router", choices=[*OURS, *ROUTERS], default="prefix")
    fleet.add_argument("--router-policy", help="--policy of a router from PyPI (default: its own)")
    fleet.add_argument("--retries", type=int, default=0, help="times that our routers ask another server (default: 0)")
    fleet.add_argument("--kill-after", type=float, help="kill -9 of the first server after so many seconds of the trace")
    fleet.add_argument("--logs", type=pathlib.Path, help="directory for what the servers log")
    trace = parser.add_argument_group("the trace")
    trace.add_argument("--seed", type=int, default=1)
    trace.add_argument("--seconds", type=float, default=60.0, help="in which conversations begin (default: 60)")
    trace.add_argument("--rate", type=float, default=0.4, help="conversations a second and replica (default: 0.4)")
    trace.add_argument("--systems", type=int, default=32, help="system prompts (default: 32)")
    trace.add_argument("--system-tokens", type=int, nargs=2, default=(500, 2500), metavar=("LEAST", "MOST"))
    trace.add_argument("--turns", type=float, default=4.0, help="of a conversation, on average (default: 4)")
    trace.add_argument("--think", type=float, default=8.0, help="seconds to the next turn, on average (default: 8)")
    trace.add_argument("--write-trace", type=pathlib.Path, help="write the trace to a file and end")
    options = parser.parse_args()
    if options.replicas < 1 or options.systems < 1 or options.rate <= 0 or not 0.01 <= options.speed <= 1000:
        parser.error("--replicas and --systems must be at least 1, --rate above 0, --speed from 0.01 to 1000")
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    return options


def main():
    options = parse()
    trace = make_trace(options)
    if options.write_trace:
        options.write_trace.write_text("".join(json.dumps(line) + "\n" for line in trace))
        print(f"{len(trace)} conversations, {sum(len(line['turns']) for line in trace)} turns", file=sys.stderr)
        return 0
    if options.router in ROUTERS:
        program_of(options.router)  # before anything is started
    servers = [Server(options) for _ in range(options.replicas)]
    router = None
    try:
        for server in servers:
            server.wait(60 + 2 * options.replicas)
        with urllib.request.urlopen(servers[0].url + "/v1/models", timeout=60) as response:
            options.served = json.load(response)["data"][0]["id"]
        router = (OurRouter if options.router in OURS else ForeignRouter)(options, servers)
        run = Run(options, trace, router, Text(servers[0].url))
        asyncio.run(run.play(servers))
        print(json.dumps(run.report()))
        return 0
    finally:
        if router:
            router.stop()
        for server in servers:
            server.process.terminate()
        for server in servers:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
