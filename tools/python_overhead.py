#!/usr/bin/env python3
"""What the Python package costs over the engine: the same prompts through `lapidary bench throughput` and LLM.generate.

    ./lapidary package wheel && pip install dist/lapidary-*.whl
    tools/python_overhead.py build/lapidary

Runs take turns, because machines drift; each side's best counts. The second figure is the CPU time of the caller's own
thread for a small request, from the prompt to its output: the engine's threads are not in it.
"""

import argparse
import json
import random
import subprocess
import time

import lapidary


def random_prompts(llm, num_prompts, length):
    draw = random.Random(1)
    return [[draw.randrange(llm.vocab_size) for _ in range(length)] for _ in range(num_prompts)]


def bench_seconds(arguments):
    output = subprocess.run(
        [arguments.program, "bench", "throughput", lapidary.engine.default_model(), "--num-prompts",
         str(arguments.num_prompts), "--input-len", str(arguments.input_len), "--output-len", str(arguments.output_len),
         "--max-num-seqs", "64", "--no-spec", "--device", arguments.device, "--json"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(output.stdout)["elapsed_time"]


def python_seconds(arguments):
    length = arguments.input_len + arguments.output_len
    with lapidary.LLM(device=arguments.device, max_num_seqs=64, max_model_len=length, speculative_config=False) as llm:
        prompts = random_prompts(llm, arguments.num_prompts, arguments.input_len)
        params = lapidary.SamplingParams(temperature=0, max_tokens=arguments.output_len, ignore_eos=True)
        llm.generate(prompts[0], lapidary.SamplingParams(max_tokens=4), use_tqdm=False)
        began = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - began


def request_microseconds(arguments, num_requests=1024):
    with lapidary.LLM(device=arguments.device, max_model_len=64, speculative_config=False) as llm:
        prompts = random_prompts(llm, num_requests, 4)
        params = lapidary.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            llm.generate(prompts, params, use_tqdm=False)
            best = min(best, time.thread_time() - began)
        return 1e6 * best / num_requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the lapidary program of the same build")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rounds = [(bench_seconds(arguments), python_seconds(arguments)) for _ in range(arguments.rounds)]
    ours, theirs = min(two for _, two in rounds), min(one for one, _ in rounds)
    print(f"{arguments.num_prompts} prompts, {arguments.input_len} tokens in, {arguments.output_len} out: "
          f"bench {theirs:.3f} s, Python {ours:.3f} s ({100 * (ours / theirs - 1):+.1f}%)")
    print(f"{request_microseconds(arguments):.1f} us of the caller's thread a request")


if __name__ == "__main__":
    main()
