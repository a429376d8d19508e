"""Every field with values of every other type: an answer or a refusal, soon, and never an internal error."""

import asyncio
import copy
import json

import hostile
from target import MEGABYTE, check_refusal, in_groups, rounds

ALLOWED = (200, 400, 404, 413)


async def send(target, path, body):
    status, answer = await target.ask(body, path)
    assert status in ALLOWED, (path, body[:300] if isinstance(body, bytes) else json.dumps(body)[:300], status, answer)
    if status != 200:
        check_refusal(answer)
    return status


def with_odd_fields(draw, num_values):
    """Each field of each endpoint, whatever its depth, replaced by some odd values one after the other."""
    for path, sane in hostile.SANE_BODIES.items():
        for place in places(sane):
            for value in draw.sample(hostile.ODD_VALUES[:-1], num_values):  # without the long text
                body = copy.deepcopy(sane)
                replace(body, place, value)
                yield path, json.dumps(body).encode()


def places(node, before=()):
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*before, key)
        if isinstance(child, (dict, list)):
            yield from places(child, (*before, key))


def replace(node, place, value):
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value


# Sampling and limits at and beyond their edges, in all combinations that a draw brings.
EDGES = {
    "n": [1, 2, 8], "best_of": [1, 2, 3], "max_tokens": [0, 1, 5, 100_000], "min_tokens": [0, 5, 6, -1],
    "temperature": [0, 1e-9, 1, 2, 1e9], "top_p": [0, 1e-12, 0.5, 1, 1.5], "top_k": [-1, 0, 1, 2**31 - 1, 2**31],
    "min_p": [0, 1, 1.1], "seed": [0, -1, 2**63 - 1, 2**64], "logprobs": [0, 5, 20, 21],
    "presence_penalty": [-2, 2, 3], "frequency_penalty": [-2, 2, 1e300], "repetition_penalty": [1e-9, 1, 1e9, 0],
    "stop": ["", "a", ["a"] * 4, ["a"] * 5, ["a" * 10_000], []], "stop_token_ids": [[0], [2**31], list(range(250))],
    "logit_bias": [{"5": 100, "6": -100}, {"5": 1e9}, {"-1": 1}, {"x": 1}, {str(token): 1 for token in range(300)}],
    "allowed_token_ids": [[5], [], [2**31], list(range(250))], "bad_words": [["a"], [""], ["a" * 5000], ["a"] * 300],
    "prompt": ["", "Hello", [], [5], [[5], [6]], ["a", "b"], ["Hello"] * 64, [5] * 300, "a" * 3000],
    "echo": [True, False], "suffix": ["x", ""], "ignore_eos": [True, False], "truncate_prompt_tokens": [0, 1, -1],
    "prompt_logprobs": [0, 20, 21, -1], "stream": [True, False], "skip_special_tokens": [True, False],
}


def on_edges(draw):
    body = {"prompt": "Hello", "max_tokens": 3}
    for name in draw.sample(list(EDGES), draw.randint(1, 6)):
        body[name] = draw.choice(EDGES[name])
    return "/v1/completions", body


def test_types_and_edges(start):
    target = start("--max-model-len", "256", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "32MB")
    asyncio.run(send(target, *hostile.random_json(next(rounds("first")))))
    before = target.resident()
    for draw in rounds("types"):
        cases = [*with_odd_fields(draw, 3), *(hostile.random_json(draw) for _ in range(150)),
                 *(on_edges(draw) for _ in range(250))]
        draw.shuffle(cases)

        async def play():
            return await in_groups((send(target, *case) for case in cases), 16)

        statuses = asyncio.run(play())
        assert statuses.count(400) > len(cases) / 4 and statuses.count(200) > len(cases) / 10
        target.check()
    assert target.resident() < before + (32 + 96) * MEGABYTE
