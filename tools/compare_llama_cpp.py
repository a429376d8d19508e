#!/usr/bin/env python3
"""Our server against llama.cpp's on the same weights, on the CPU, in alternation.

    build/lapidary synth --preset e2b --out DIR
    build/lapidary convert DIR --to q4_0 --out FILE.gguf          # or tools/make_random_gguf.py DIR FILE.gguf: bf16
    tools/compare_llama_cpp.py --gguf FILE.gguf --llama-server PATH --lapidary-flags=--fast-math

Cases: `decode` (one client, 128 tokens of answer), `prompt` (one client, 512 tokens of prompt), `clients`
(--clients of them, --input-len and --output-len), `start` (from the start of the process to the first token
of an answer to one word, of a file in the page cache).

But for `start`, both servers are started once, with the same number of threads, and warmed. Then rounds of
`lapidary bench serve` go to one and the other in turn (the order alternates), with prompts no round has seen
before. The idle server waits without using the processor. Each round gives one ratio; the median of the
ratios is the result, for the machine's speed wanders less within a round than between rounds. Ratios above
1 are for us. The seconds of processor time that each server used are printed too: on a busy machine they
tell more than the clock (but threads that wait by spinning use them as well).
"""
import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, name, command, port, log_path):
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log_path = log_path
        with open(log_path, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_ready(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.02)
        sys.exit(f"{self.name} did not start; its log: {self.log_path}")

    def answer_one_token(self):
        body = json.dumps({"prompt": "Why", "max_tokens": 1, "temperature": 0}).encode()
        request = urllib.request.Request(
            self.url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            json.load(answer)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Case(typing.NamedTuple):
    clients: int
    input_len: int
    output_len: int
    num_prompts: int
    key: str  # of the result of `bench serve`
    higher_is_better: bool


def cases_of(args):
    return {
        "decode": Case(1, 32, 128, 1, "median_tpot_ms", False),
        "prompt": Case(1, 512, 2, 2, "median_ttft_ms", False),
        "clients": Case(args.clients, args.input_len, args.output_len, args.num_prompts, "output_throughput", True),
    }


def start_lapidary(args, directory):
    port = free_port()
    return Server("lapidary", [
        args.lapidary, "serve", args.checkpoint or args.gguf, "--device", "cpu", "--port", str(port), "--threads",
        str(args.threads), "--max-num-seqs", str(args.clients), "--max-model-len", str(context_of(args)),
        *args.lapidary_flags.split()], port, directory / "lapidary.log")


# One slot for every client, so that all run at once: continuous batching is its default.
def start_llama(args, directory):
    port = free_port()
    return Server("llama.cpp", [
        args.llama_server, "--model", args.gguf, "--host", "127.0.0.1", "--port", str(port),
        "--threads", str(args.threads), "--threads-batch", str(args.threads), "--parallel",
        str(args.clients), "--ctx-size", str(context_of(args) * args.clients), *args.llama_flags],
        port, directory / "llama.log")


def context_of(args):
    return max(case.input_len + case.output_len for case in cases_of(args).values()) + 16


def in_turn(round_idx, pair):
    return pair if round_idx % 2 == 0 else pair[::-1]


def compare_starts(args, directory):
    ratios = []
    for round_idx in range(args.rounds):
        seconds = {}
        for start in in_turn(round_idx, (start_lapidary, start_llama)):
            begin = time.monotonic()
            server = start(args, directory)
            try:
                server.wait_until_ready(900)
                server.answer_one_token()
                seconds[server.name] = time.monotonic() - begin
            finally:
                server.stop()
            print(f"{server.name:<10} {seconds[server.name]:8.2f} s to the first token", flush=True)
        ratios.append(seconds["llama.cpp"] / seconds["lapidary"])
    report("start", "seconds", ratios)


def report(name, key, ratios):
    print(f"{name}: {key}, lapidary over llama.cpp, median of {len(ratios)}: {statistics.median(ratios):.2f} "
          f"({', '.join(f'{ratio:.2f}' for ratio in ratios)})", flush=True)


def run_round(args, case, server, seed, directory):
    path = directory / f"{server.name}-{seed}.json"
    command = [
        args.lapidary, "bench", "serve", "--base-url", server.url, "--random-input-len", str(case.input_len),
        "--random-output-len", str(case.output_len), "--num-prompts", str(case.num_prompts), "--max-concurrency",
        str(case.clients), "--seed", str(seed), "--temperature", "0", "--save-result", "--result-filename", str(path)]
    cpu_before = server.cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{server.name}: {done.stderr}\nits log: {server.log_path}")
    result = json.loads(path.read_text())
    result["cpu_seconds"] = server.cpu_seconds() - cpu_before  # the trial request's too
    expected = case.num_prompts * case.output_len
    if result["failed"] or result["total_output_tokens"] != expected:
        print(done.stderr, file=sys.stderr)
        sys.exit(f"{server.name} made {result['total_output_tokens']} tokens, not {expected}")
    print(f"{server.name:<10} {result['output_throughput']:8.2f} tok/s, TTFT "
          f"{result['median_ttft_ms']:8.0f} ms, TPOT {result['median_tpot_ms']:7.1f} ms, "
          f"{result['duration']:6.1f} s, {result['cpu_seconds']:6.1f} s of processor", flush=True)
    return result


def compare_case(args, name, case, servers, directory):
    seed = args.seed * 1000 + 100 * list(cases_of(args)).index(name)
    print(f"{name}: warm-up")
    for server in servers:
        run_round(args, case._replace(output_len=2, num_prompts=case.clients), server, seed, directory)
    results = {server.name: [] for server in servers}
    for round_idx in range(args.rounds):
        print(f"{name}: round {round_idx + 1}")
        for server in in_turn(round_idx, servers):
            results[server.name].append(run_round(args, case, server, seed + 1 + round_idx, directory))
    for key in (case.key, "cpu_seconds"):
        is_rate = case.higher_is_better and key == case.key
        ratios = [our[key] / their[key] if is_rate else their[key] / our[key]
                  for our, their in zip(results["lapidary"], results["llama.cpp"])]
        report(name, key, ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--checkpoint", help="what our server loads; default: the GGUF file too")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--lapidary", default=str(root / "build" / "lapidary"))
    parser.add_argument("--cases", nargs="+", choices=["decode", "prompt", "clients", "start"],
                        default=["decode", "prompt", "clients", "start"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lapidary-flags", default="", help="flags of our server, in one string")
    parser.add_argument("--llama-flags", nargs=argparse.REMAINDER, default=[],
                        help="everything after it goes to llama.cpp's server")
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the servers end with us
    directory = pathlib.Path(tempfile.mkdtemp(prefix="compare-llama-"))
    if "start" in args.cases:
        compare_starts(args, directory)
    served = {name: case for name, case in cases_of(args).items() if name in args.cases}
    if not served:
        return
    servers = start_lapidary(args, directory), start_llama(args, directory)
    try:
        for server in servers:
            server.wait_until_ready(900)
        for name, case in served.items():
            compare_case(args, name, case, servers, directory)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
