"""Bodies that are large, deep or wide where they may be: read in time and memory in proportion to their bytes."""

import asyncio

from target import MEGABYTE, check_refusal, in_groups, rounds

CHAT = "/v1/chat/completions"


def large(draw):
    """(path, bytes) of some megabytes."""
    many = draw.randrange(200_000, 600_000)
    nest = draw.randrange(1000, 100_000)
    ids = b",".join(b"%d" % draw.randrange(300) for _ in range(many))
    pairs = b",".join(b'"k%d":%d' % (number, number) for number in range(many // 4))
    prompt = b'{"max_tokens": 1, "prompt": %s}'
    bodies = [
        ("/v1/completions", prompt % (b"[" + ids + b"]")),
        ("/v1/completions", prompt % (b"[" + ids + b',"x"]')),
        ("/v1/completions", prompt % (b"[[" + ids + b"]]")),
        ("/v1/completions", prompt % (b"[" * nest + b"]" * nest)),
        ("/v1/completions", prompt % (b'"' + b"\\u0041" * many + b'"')),
        ("/v1/completions", prompt % (b'"' + b"a" * many * 4 + b'"')),
        ("/v1/completions", prompt % (b"[" + b'"a",' * many + b'"a"]')),
        ("/v1/completions", b'{"prompt": "Hi", ' + pairs + b"}"),
        ("/v1/completions", b'{"prompt": "Hi", "logit_bias": {' + pairs + b"}}"),
        ("/v1/completions", b'{"prompt": "Hi", "x": [' + b"null," * many + b"1]}"),
        ("/v1/completions", b'{"prompt": "Hi", "x": [' + b"{}," * many + b"1]}"),
        ("/v1/completions", b'{"prompt": "Hi", "stop": [' + b'"a",' * many + b'"b"]}'),
        ("/v1/completions", b'{"prompt": "Hi", "temperature": ' + b"1" * many + b"}"),
        ("/v1/completions", b'{"prompt": "Hi", "temperature": 0.' + b"1" * many + b"e-5}"),
        ("/v1/completions", b" " * many + b'{"prompt": "Hi", "max_tokens": 1}'),
        ("/tokenize", b'{"prompt": "' + b"ab " * many + b'", "return_token_strs": true}'),
        ("/detokenize", b'{"tokens": [' + ids + b"]}"),
        (CHAT, b'{"max_tokens": 1, "messages": [' + b'{"role":"user","content":"a"},' * (many // 8) +
         b'{"role":"user","content":"a"}]}'),
        (CHAT, b'{"max_tokens": 1, "messages": [{"role":"user","content": [' +
         b'{"type":"text","text":"a"},' * (many // 8) + b'{"type":"text","text":"a"}]}]}'),
        (CHAT, b'{"max_tokens": 1, "messages": [{"role":"user","content":"a"}], "tools": [' +
         b'{"type":"function","function":{"name":"f","parameters":{}}},' * (many // 16) +
         b'{"type":"function","function":{"name":"f"}}]}'),
        ("/v1/responses", b'{"max_output_tokens": 1, "input": [' + b'{"role":"user","content":"a"},' * (many // 8) +
         b'{"role":"user","content":"a"}]}'),
        ("/v1/messages", b'{"max_tokens": 1, "system": [' + b'{"type":"text","text":"a"},' * (many // 8) +
         b'{"type":"text","text":"a"}], "messages": [{"role":"user","content":"a"}]}'),
        ("/v1/audio/transcriptions", b"--x\r\n" * many),
    ]
    draw.shuffle(bodies)
    return bodies


def test_large_bodies(start):
    target = start("--max-model-len", "256", "--max-body-bytes", "12MB", "--max-request-memory", "256MB")
    before = target.resident()

    async def send(path, body):
        status, answer = await target.ask(body, path)
        # All are refused but the texts of /tokenize and /detokenize, and what is not looked at.
        assert status in (200, 400, 404, 413, 503), (path, body[:80], status, answer)
        if status != 200:
            check_refusal(answer)
        return status

    for draw in rounds("bodies"):
        async def play():
            return await in_groups((send(*body) for body in large(draw)), 4)

        assert asyncio.run(play()).count(400) > 5
        target.check()
    # What is freed an allocator keeps for the next, up to what requests may hold.
    assert target.resident() < before + 256 * MEGABYTE
