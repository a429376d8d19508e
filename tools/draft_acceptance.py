#!/usr/bin/env python3
"""How many drafts of the bundled assistants are accepted, by temperature and by kind of draft.

  tools/draft_acceptance.py --lapidary build/lapidary [--items 500] [--tokens 3] [--by-source]

Starts `lapidary serve` for each bundled pair and kind of draft, asks it the Pebble evaluation set at each temperature
and reads the server's own counters. Prints tokens a round (the accepted drafts and the target's own token) and the share
of rounds that accept draft 1, 2, ... With --by-source: greedily, for each --spec-method and each kind of question, the
rounds of each source and its tokens a round. The questions of "editing" repeat an answer that stands in the prompt.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import subprocess
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Server:
    def __init__(self, binary, model, flags):
        self.process = subprocess.Popen([binary, "serve", model, "--device", "cpu", "--port", "0", *flags],
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if match := re.search(r"serving .* on (http://\S+)", line):
                self.url = match[1]
                return
        raise SystemExit(f"{model} does not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def ask(self, item, temperature, seed):
        body = {"messages": item["messages"], "temperature": temperature, "top_k": 0, "top_p": 1.0, "seed": seed,
                "max_tokens": 200, "chat_template_kwargs": {"enable_thinking": item["enable_thinking"]}}
        if "tools" in item:
            body["tools"] = item["tools"]
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        urllib.request.urlopen(request).read()

    def counters(self):
        text = urllib.request.urlopen(f"{self.url}/metrics").read().decode()
        value = lambda name: float(re.search(rf"^lapidary:spec_decode_{name}_total{{.*}} (\S+)$", text, re.MULTILINE)[1])
        places = re.findall(r'^lapidary:spec_decode_num_accepted_tokens_per_pos_total{.*position="(\d+)".*} (\S+)$', text,
                            re.MULTILINE)
        in_order = sorted(places, key=lambda place: int(place[0]))
        return [value("num_drafts"), *(float(count) for _, count in in_order)]

    def by_source(self):
        """{"tokens": generated, source: [rounds, drafts, accepted]}"""
        text = urllib.request.urlopen(f"{self.url}/metrics").read().decode()
        counts = collections.defaultdict(lambda: [0.0] * 3)
        for idx, name in enumerate(("rounds", "tokens", "accepted_tokens")):
            for source, count in re.findall(rf'^lapidary:draft_source_{name}_total{{.*source="(\w+)".*}} (\S+)$', text,
                                            re.MULTILINE):
                counts[source][idx] = float(count)
        counts["tokens"] = float(re.search(r"^lapidary:generation_tokens_total{.*} (\S+)$", text, re.MULTILINE)[1])
        return counts


def print_by_source(options, items):
    tasks = collections.defaultdict(list)
    for item in items:
        tasks[item["task"]].append(item)
    # What an editor is asked: an answer that repeats most of its prompt.
    tasks["editing"] = [{"messages": item["messages"] + [{"role": "assistant", "content": item["reference"]["content"]},
                                                         item["messages"][-1]], "enable_thinking": False}
                        for item in items if item["task"] in ("lists", "json", "recall")]
    for model in ("pebble-e", "pebble-dense", "pebble-moe"):
        for method in ("ngram", "assistant", "auto"):
            # What auto chooses is the question.
            fixed = [] if method == "auto" else ["--spec-fixed"]
            flags = ["--spec-method", method, "--spec-tokens", str(options.tokens), *fixed]
            with Server(options.lapidary, ROOT / "models" / model, flags) as server:
                for task, asked in tasks.items():
                    before = server.by_source()
                    with concurrent.futures.ThreadPoolExecutor(8) as pool:
                        list(pool.map(lambda item: server.ask(item, 0.0, 0), asked))
                    after = server.by_source()
                    tokens = after.pop("tokens") - before["tokens"]
                    parts = []
                    for source, counts in sorted(after.items()):
                        rounds, drafts, taken = (new - old for new, old in zip(counts, before[source]))
                        if rounds > 0:
                            parts.append(f"{source} {1 + taken / rounds:.2f} tokens a round of "
                                         f"{drafts / rounds:.1f} drafts, {rounds:.0f} rounds")
                    print(f"{model:13} {method:9} {task:10} {tokens:.0f} tokens; {'; '.join(parts)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", type=pathlib.Path, required=True)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--by-source", action="store_true")
    options = parser.parse_args()
    lines = (ROOT / "models" / "pebble-eval.jsonl").read_text().splitlines()
    items = [json.loads(line) for line in lines[::max(1, len(lines) // options.items)]][:options.items]
    if options.by_source:
        return print_by_source(options, items)
    for model in ("pebble-e", "pebble-dense", "pebble-moe"):
        for draw in ("coupled", "likeliest"):
            flags = ["--spec-tokens", str(options.tokens), "--spec-fixed", "--spec-draw", draw]
            with Server(options.lapidary, ROOT / "models" / model, flags) as server:
                for temperature in (1.0, 0.7, 0.0):
                    before = server.counters()
                    with concurrent.futures.ThreadPoolExecutor(16) as pool:
                        list(pool.map(lambda pair: server.ask(pair[1], temperature, pair[0]), enumerate(items)))
                    counters = server.counters()[:options.tokens + 1]
                    rounds, *accepted = (after - then for after, then in zip(counters, before))
                    shares = " / ".join(f"{count / rounds:.3f}" for count in accepted)
                    print(f"{model:13} T = {temperature}: {draw:9} {1 + sum(accepted) / rounds:.3f} tokens a round, "
                          f"accepted {shares}", flush=True)


if __name__ == "__main__":
    main()
