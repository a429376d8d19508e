"""Requests that no honest client sends: broken HTTP and broken JSON, drawn from a seeded generator."""

import copy
import json

CHAT = "/v1/chat/completions"
PATHS = [CHAT, "/v1/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/messages",
         "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/show", "/tokenize", "/detokenize"]

SANE_BODIES = {
    CHAT: {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
           "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "n": 1, "seed": 7, "logprobs": True,
           "top_logprobs": 2, "stream": False, "stream_options": None, "logit_bias": {"5": 1.5},
           "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 3, "temperature": 0, "top_k": 5, "min_p": 0.1,
                        "presence_penalty": 0.5, "stop": "y", "logprobs": 1, "ignore_eos": True},
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
                                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
                                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                {"type": "function_call_output", "call_id": "c", "output": "5"}],
                      "instructions": "Be brief.", "max_output_tokens": 3, "reasoning": {"effort": "low"},
                      "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
                      "text": {"format": {"type": "text"}}, "previous_response_id": None},
    "/v1/messages": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]},
                                  {"role": "assistant", "content": [
                                      {"type": "thinking", "thinking": "x", "signature": ""},
                                      {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                                  {"role": "user", "content": [
                                      {"type": "tool_result", "tool_use_id": "t", "content": "5"}]}],
                     "system": "Be brief.", "max_tokens": 3, "stop_sequences": ["x"], "tool_choice": {"type": "auto"},
                     "tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "disabled"}},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": [
        {"type": "document", "title": "T", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "y"}}]}], "system": [
            {"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "Be brief."}]},
    "/v1/responses/input_tokens": {"input": "Hello", "instructions": "Be brief.", "include": ["x"], "store": True,
                                   "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}]},
    "/api/chat": {"model": "tiny:latest", "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "thinking": "x", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "tool_name": "f", "content": "5"}],
                  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
                  "options": {"num_predict": 3, "temperature": 0.5, "top_k": 5, "stop": ["x"], "seed": 7}, "think": False,
                  "format": "", "keep_alive": "5m"},
    "/api/generate": {"prompt": "Hello", "system": "Be brief.", "stream": False, "options": {"num_predict": 3},
                      "format": {"type": "object"}, "images": [], "raw": False, "context": []},
    "/api/show": {"model": "tiny"},
    "/tokenize": {"prompt": "Hello", "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"tokens": [2, 5, 9]},
}

ODD_VALUES = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -2**63, 2**64, 10**40, 1e308, -1e308, 1e-320, 0.5, "", "x", "\0",
    "\ud800", "é" * 2000, "<|turn>model\n", [], [[]], [None], ["a", 1], {}, {"a": {}}, [1.5], [2**40], [-1],
    {"type": "text", "text": "x"}, [{"type": "image_url"}], "a" * 100_000,
]
ODD_NUMBERS = [b"1e999", b"-1e999", b"1" * 5000, b"0x10", b"01", b"+1", b".5", b"1.", b"NaN", b"-Infinity", b"1e",
               b"--1", b"1_000", b"9" * 400 + b".0"]


def random_json(random):
    """(path, body): a sane request with something wrong, or bytes that only look like one."""
    path = random.choice(PATHS)
    body = json.loads(json.dumps(SANE_BODIES[path]))
    kind = random.randrange(8)
    if kind < 4:
        for _ in range(random.randint(1, 3)):
            replace_somewhere(random, body)
        return path, json.dumps(body, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    text = json.dumps(body).encode()
    if kind == 4:  # one number replaced by something that is hardly one
        return path, text.replace(b"3", random.choice(ODD_NUMBERS), 1)
    if kind == 5:  # bytes flipped, lost, repeated
        text = bytearray(text)
        for _ in range(random.randint(1, 6)):
            position = random.randrange(len(text))
            edit = random.randrange(3)
            if edit == 0:
                text[position] = random.randrange(256)
            elif edit == 1:
                del text[position]
            else:
                text[position:position] = text[position:position + random.randint(1, 9)]
        return path, bytes(text)
    if kind == 6:
        return path, text[:random.randrange(len(text))]
    return path, random_nest(random, text)


def replace_somewhere(random, node):
    """Replaces, adds or drops one value anywhere in the tree."""
    while True:
        key = random.choice(list(node) if isinstance(node, dict) else list(range(len(node))))
        child = node[key]
        if isinstance(child, (dict, list)) and child and random.random() < 0.6:
            node = child
            continue
        if isinstance(node, dict) and random.random() < 0.2:
            del node[key]
        else:
            node[key] = copy.deepcopy(random.choice(ODD_VALUES))
        if not node:
            node.append(1) if isinstance(node, list) else node.update(z=1)
        return


def random_nest(random, text):
    depth = random.choice([10, 100, 5_000, 200_000])
    opening, closing = random.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"b":', b"}]")])
    nest = opening * depth + b"1" + closing * (depth if random.random() < 0.5 else 0)
    return random.choice([nest, text[:-1] + b', "nest": ' + nest + b"}"])


def post(path, headers, body=b"", version="1.1"):
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"prompt": "Hi", "max_tokens": 1}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = f"Content-Length: {len(BODY)}"

# Where two readers of the same bytes could disagree on where a request ends. A server must refuse and close:
# what follows (SMUGGLED) must never be taken for a request.
SMUGGLING = {
    "length and chunked": post("/tokenize", [LENGTH, "Transfer-Encoding: chunked"], CHUNKED),
    "chunked and length": post("/tokenize", ["Transfer-Encoding: chunked", "Content-Length: 4"], CHUNKED),
    "two lengths": post("/tokenize", [LENGTH, "Content-Length: 0"], BODY),
    "list of lengths": post("/tokenize", [f"Content-Length: {len(BODY)}, 0"], BODY),
    "signed length": post("/tokenize", [f"Content-Length: +{len(BODY)}"], BODY),
    "negative length": post("/tokenize", ["Content-Length: -1"]),
    "hexadecimal length": post("/tokenize", [f"Content-Length: {len(BODY):#x}"], BODY),
    "huge length": post("/tokenize", ["Content-Length: 18446744073709551616"]),
    "no length": post("/tokenize", ["Content-Length:"]),
    "space before the colon": post("/tokenize", [f"Content-Length : {len(BODY)}"], BODY),
    "unknown coding": post("/tokenize", ["Transfer-Encoding: gzip"], BODY),
    "identity coding": post("/tokenize", ["Transfer-Encoding: identity"], BODY),
    "coding behind chunked": post("/tokenize", ["Transfer-Encoding: chunked, gzip"], CHUNKED),
    "coding before chunked": post("/tokenize", ["Transfer-Encoding: gzip, chunked"], CHUNKED),
    "chunked twice": post("/tokenize", ["Transfer-Encoding: chunked, chunked"], CHUNKED),
    "two codings": post("/tokenize", ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"], CHUNKED),
    "misspelt chunked": post("/tokenize", ["Transfer-Encoding: xchunked"], CHUNKED),
    "quoted chunked": post("/tokenize", ['Transfer-Encoding: "chunked"'], CHUNKED),
    "vertical tab": post("/tokenize", ["Transfer-Encoding:\x0bchunked"], CHUNKED),
    "chunked over 1.0": post("/tokenize", ["Transfer-Encoding: chunked"], CHUNKED, version="1.0"),
    "signed chunk": post("/tokenize", ["Transfer-Encoding: chunked"], b"+3\r\nabc\r\n0\r\n\r\n"),
    "no chunk size": post("/tokenize", ["Transfer-Encoding: chunked"], b"\r\nabc\r\n0\r\n\r\n"),
    "huge chunk": post("/tokenize", ["Transfer-Encoding: chunked"], b"ffffffffffffffffff\r\nabc"),
    "chunk without its end": post("/tokenize", ["Transfer-Encoding: chunked"], b"3\r\nabcdef\r\n0\r\n\r\n"),
    "bare line feeds in chunks": post("/tokenize", ["Transfer-Encoding: chunked"], b"3\nabc\n0\n\n"),
}

BROKEN = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "odd version": b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no version": b"GET /health HTTP/\r\n\r\n",
    "bare line feeds": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "folded header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b\r\n  c\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n",
    "high bytes in a name": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\xc3\xa9: b\r\n\r\n",
    "high bytes in the target": b"GET /\xff\xfe\x80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "control bytes in the target": b"GET /\x01\x7f HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "whole URL": b"GET http://x/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "dots": b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT": b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "upgrade": b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "long method": b"A" * 5000 + b" / HTTP/1.1\r\n\r\n",
    "long target": b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "long header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    "headers without an end": b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 100,
    "only line ends": b"\r\n" * 2000,
    "nothing": b"",
    "truncated body": post("/v1/completions", ["Content-Length: 1000"], BODY),
    "truncated chunk": post("/v1/completions", ["Transfer-Encoding: chunked"], b"400\r\n" + BODY),
    "many tiny chunks": post("/v1/completions", ["Transfer-Encoding: chunked"],
                             b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
    "long chunk extensions": post("/v1/completions", ["Transfer-Encoding: chunked"],
                                  b"1;" + b"e" * 200_000 + b"\r\na\r\n0\r\n\r\n"),
    "flood of trailers": post("/v1/completions", ["Transfer-Encoding: chunked"],
                              b"2\r\n{}\r\n0\r\n" + b"T: x\r\n" * 50_000 + b"\r\n"),
    "invalid UTF-8": post("/tokenize", ["Content-Length: 17"], b'{"prompt": "\xff\xfe\x80"}'[:17]),
    "unknown expectation": post("/tokenize", [LENGTH, "Expect: 200-maybe"], BODY),
    "body on a GET": b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello" + GET,
}


def random_http(random):
    """Sane bytes with something flipped, lost, repeated or cut."""
    text = bytearray(random.choice([GET, post("/v1/completions", [LENGTH], BODY),
                                    post("/tokenize", ["Transfer-Encoding: chunked"], CHUNKED)]) * random.randint(1, 3))
    for _ in range(random.randint(1, 4)):
        position = random.randrange(len(text))
        edit = random.randrange(4)
        if edit == 0:
            text[position] = random.randrange(256)
        elif edit == 1:
            del text[position:position + random.randint(1, 5)]
        elif edit == 2:
            text[position:position] = random.choice([b"\r\n", b"\n", b"\0", b" ", b":", b"\xff" * 9, b"9" * 30])
        else:
            del text[max(position, 1):]
        text = text or bytearray(b"x")
    return bytes(text)
