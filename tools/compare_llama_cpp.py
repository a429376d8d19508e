#!/usr/bin/env python3
"""Our server against llama.cpp's on the same weights, on the CPU, in alternation.

    build/lapidary synth --preset e2b --out DIR
    tools/make_random_gguf.py DIR FILE.gguf
    tools/compare_llama_cpp.py --checkpoint DIR --gguf FILE.gguf --llama-server PATH

Both servers are started once, with the same number of threads, and warmed. Then rounds of `lapidary
bench serve` go to one and the other in turn (the order alternates), with prompts no round has seen
before. The idle server waits without using the processor. Each round gives one ratio of output tokens
per second; the median of the ratios is the result, for the machine's speed wanders less within a round
than between rounds. The seconds of processor time that each server used are printed too: on a busy
machine they tell more than the clock (but threads that wait by spinning use them as well).
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
            time.sleep(0.5)
        sys.exit(f"{self.name} did not start; its log: {self.log_path}")

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def start_servers(args, directory):
    context = args.input_len + args.output_len + 16
    ports = free_port(), free_port()
    ours = Server("lapidary", [
        args.lapidary, "serve", args.checkpoint, "--device", "cpu", "--port", str(ports[0]), "--threads",
        str(args.threads), "--max-num-seqs", str(args.clients), "--max-model-len", str(context)],
        ports[0], directory / "lapidary.log")
    # One slot for every client, so that all run at once: continuous batching is its default.
    theirs = Server("llama.cpp", [
        args.llama_server, "--model", args.gguf, "--host", "127.0.0.1", "--port", str(ports[1]),
        "--threads", str(args.threads), "--threads-batch", str(args.threads), "--parallel",
        str(args.clients), "--ctx-size", str(context * args.clients), *args.llama_flags],
        ports[1], directory / "llama.log")
    return ours, theirs


def run_round(args, server, seed, num_prompts, output_len, directory):
    path = directory / f"{server.name}-{seed}.json"
    command = [
        args.lapidary, "bench", "serve", "--base-url", server.url, "--random-input-len",
        str(args.input_len), "--random-output-len", str(output_len), "--num-prompts",
        str(num_prompts), "--max-concurrency", str(args.clients), "--seed", str(seed), "--temperature",
        "0", "--save-result", "--result-filename", str(path)]
    cpu_before = server.cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{server.name}: {done.stderr}\nits log: {server.log_path}")
    result = json.loads(path.read_text())
    result["cpu_seconds"] = server.cpu_seconds() - cpu_before  # the trial request's too
    expected = num_prompts * output_len
    if result["failed"] or result["total_output_tokens"] != expected:
        print(done.stderr, file=sys.stderr)
        sys.exit(f"{server.name} made {result['total_output_tokens']} tokens, not {expected}")
    print(f"{server.name:<10} {result['output_throughput']:8.2f} tok/s, TTFT "
          f"{result['median_ttft_ms']:8.0f} ms, TPOT {result['median_tpot_ms']:7.1f} ms, "
          f"{result['duration']:6.1f} s, {result['cpu_seconds']:6.1f} s of processor", flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--lapidary", default=str(root / "build" / "lapidary"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--llama-flags", nargs=argparse.REMAINDER, default=[],
                        help="everything after it goes to llama.cpp's server")
    args = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # the servers end with us
    directory = pathlib.Path(tempfile.mkdtemp(prefix="compare-llama-"))
    servers = start_servers(args, directory)
    results = {server.name: [] for server in servers}
    try:
        for server in servers:
            server.wait_until_ready(900)
        print("warm-up")
        for server in servers:
            run_round(args, server, args.seed * 1000, args.clients, 4, directory)
        for round_idx in range(args.rounds):
            print(f"round {round_idx + 1}")
            for server in servers if round_idx % 2 == 0 else reversed(servers):
                results[server.name].append(run_round(
                    args, server, args.seed * 1000 + 1 + round_idx, args.num_prompts, args.output_len,
                    directory))
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:
        for server in servers:
            server.stop()
    ours, theirs = (results[server.name] for server in servers)
    for key in ("output_throughput", "median_ttft_ms", "median_tpot_ms", "cpu_seconds"):
        ratios = [our[key] / their[key] for our, their in zip(ours, theirs)]
        print(f"{key}: lapidary / llama.cpp, median of {len(ratios)}: {statistics.median(ratios):.2f} "
              f"({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
