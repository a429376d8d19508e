"""A process that may take little more memory than it has: who asks for much is told to come back, the others are served."""

import asyncio
import pathlib
import time

import pytest
from media_files import large_jpeg
from target import MEGABYTE, SANITIZED, check_refusal, in_groups, rounds

CHAT = "/v1/chat/completions"
PEBBLE = pathlib.Path(__file__).resolve().parents[2] / "models" / "pebble-e"


def tokenize_body(draw):
    return "/tokenize", b'{"prompt": "' + b"ab " * draw.randrange(10_000_000, 11_000_000) + b'"}'


def tree_body(draw):
    """Of more than a million values."""
    return "/v1/completions", b'{"prompt": "Hi", "x": [' + b"[[1]]," * draw.randrange(600_000, 900_000) + b"1]}"


def media_body(draw):
    side = draw.choice([2048, 3072, 4096])
    parts = [{"type": "image_url", "image_url": {"url": large_jpeg(side, 1, draw.randrange(10_000))}}
             for _ in range(draw.choice([1, 2]))]
    return CHAT, {"max_tokens": 2, "messages": [{"role": "user", "content": parts}]}


def many_answers_body(draw):
    return CHAT, {"max_tokens": 16, "n": 128, "logprobs": True, "top_logprobs": 20, "ignore_eos": True,
                  "messages": [{"role": "user", "content": "Hello"}]}


def echo_body(draw):
    return "/v1/completions", {"prompt": [[draw.randrange(10, 250) for _ in range(60)] for _ in range(16)], "max_tokens": 1,
                               "echo": True, "logprobs": 20}


def form_body(fields):
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def grammar_body(draw):
    return CHAT, form_body({f"f{number}": {"type": "integer", "multipleOf": draw.randrange(5_000, 90_000)}
                            for number in range(6)})


BODIES = [tokenize_body, tree_body, media_body, many_answers_body, echo_body, grammar_body]


def wait_until_resident_below(target, num_bytes):
    """What was freed is given back every ten seconds."""
    deadline = time.monotonic() + 60
    while target.resident() > num_bytes and time.monotonic() < deadline:
        time.sleep(0.2)
    assert target.resident() <= num_bytes, target.metric("free_heap_bytes")


@pytest.fixture
def limited_program(program, tmp_path):
    """limited_program(kilobytes): a program that may have so much address space, from its start on."""

    def limit(kilobytes):
        path = tmp_path / f"limited-{kilobytes}"
        path.write_text(f'#!/bin/sh\nulimit -v {kilobytes} && exec "{pathlib.Path(program).resolve()}" "$@"\n')
        path.chmod(0o755)
        return str(path)

    return limit


@pytest.mark.skipif(SANITIZED, reason="a sanitizer's own memory is far beyond what the limits leave")
@pytest.mark.parametrize("factor", [1.2, 1.5, 2.0])
def test_limited_memory(start, limited_program, seeing_checkpoint, factor):
    # So much that the limit, and not what --max-request-memory would leave, is what they find.
    flags = ["--max-model-len", "1024", "--max-body-bytes", "40MB", "--kv-cache-memory-bytes", "64MB",
             "--max-num-seqs", "16", "--max-request-memory", "512MB", "--max-answer-memory", "512MB",
             "--max-grammar-memory", "64MB"]
    ample = start(*flags, model=seeing_checkpoint, program=limited_program(2**30))
    limit = int(ample.status("VmSize") * factor)
    ample.stop()
    target = start(*flags, model=seeing_checkpoint, program=limited_program(limit))
    before = target.resident()
    outcomes = []

    async def send(path, body):
        try:
            status, answer = await target.ask(body, path)
        except (ConnectionError, asyncio.IncompleteReadError):
            outcomes.append("closed")
            return
        outcomes.append(status)
        assert status in (200, 400, 413, 503), (path, status, answer)
        if status != 200:
            check_refusal(answer)

    for draw in rounds(f"memory {factor}"):
        for make in BODIES:  # Six of each at once, then six of all kinds.
            asyncio.run(in_groups([send(*make(draw)) for _ in range(6)], 6))
            target.check(expected_errors=["ran out of memory"])
        asyncio.run(in_groups([send(*draw.choice(BODIES)(draw)) for _ in range(18)], 6))
        target.check(expected_errors=["ran out of memory"])
    print(f"{factor}: {sorted((str(outcome), outcomes.count(outcome)) for outcome in set(outcomes))}")
    # Where there is no memory even for an answer, a client may be left without one, but seldom.
    assert outcomes.count("closed") <= len(outcomes) // 10, outcomes
    # The KV cache and kept grammars; what the allocator may keep; what steps and towers compute with, and keep of images.
    wait_until_resident_below(target, before + (64 + 64 + 64 + 64) * MEGABYTE)


def test_grammars_stay_within_their_memory(start):
    """Also what the allocator keeps of those that were given up."""
    target = start("--max-model-len", "512", "--max-grammar-memory", "32MB", model=PEBBLE)
    before = target.resident()

    async def play(draw):
        for number in range(12):
            fields = {f"f{field}": {"type": "integer", "multipleOf": draw.randrange(15_000, 20_000)} for field in range(6)}
            status, answer = await target.ask(form_body(fields), CHAT)
            assert status in (200, 503), answer
            if status == 503:
                check_refusal(answer)
            assert target.metric("grammar_cache_usage_bytes") < 64 * MEGABYTE

    for draw in rounds("grammar memory"):
        asyncio.run(play(draw))
        target.check()
        assert target.metric("grammar_cache_evictions_total") > 0
        # Those that are kept, and what the allocator may keep.
        wait_until_resident_below(target, before + (32 + 64) * MEGABYTE)
