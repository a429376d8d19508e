#!/usr/bin/env python3
"""What structured output costs a server: 100 clients, none and then half of them with a schema.

    lapidary serve e4b --load-format dummy --tokenizer models/pebble-e --max-model-len 2048 --max-num-seqs 128 \\
      --no-enable-prefix-caching [--spec-model e4b --spec-tokens 3 --spec-fixed]
    tools/structured_output_cost.py

Prompts are random tokens, answers are drawn at temperature 1. The schema is a list of records that no answer can finish,
so that all answers have the same length. Both loads take turns, because machines drift; each one's best counts.
"""

import argparse
import concurrent.futures
import json
import random
import time
import urllib.request

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "kind": {"enum": ["person", "company", "other"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 10_000}



def answer(url, prompt, output_len, seed, is_formed):
    body = {"prompt": prompt, "max_tokens": output_len, "temperature": 1, "top_p": 1, "top_k": 0, "seed": seed}
    body |= {"structured_outputs": {"json": SCHEMA}} if is_formed else {"ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["usage"]["completion_tokens"]


def tokens_per_second(arguments, is_mixed):
    draw = random.Random(1)
    num_prompts = arguments.clients * arguments.requests
    prompts = [[draw.randrange(arguments.vocab_size) for _ in range(arguments.input_len)] for _ in range(num_prompts)]
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(arguments.clients) as clients:
        answers = [clients.submit(answer, arguments.base_url, prompt, arguments.output_len, index,
                                  is_mixed and index % 2 == 0)
                   for index, prompt in enumerate(prompts)]
        return sum(one.result() for one in answers) / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1, help="of each client, one after another")
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=384)
    parser.add_argument("--vocab-size", type=int, default=2000, help="prompts have token ids below it")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tokens_per_second(arguments, True)  # compiles the schema, warms the server
    rounds = [(tokens_per_second(arguments, False), tokens_per_second(arguments, True)) for _ in range(arguments.rounds)]
    free, mixed = max(one for one, _ in rounds), max(two for _, two in rounds)
    print(f"{arguments.clients} clients: {free:.0f} tok/s, half of them with a schema {mixed:.0f} tok/s "
          f"({100 * (mixed / free - 1):+.1f}%)")


if __name__ == "__main__":
    main()
