"""What is kept of answers, and for clients that do not read them: it has a bound, and shows in the metrics."""

import contextlib
import json
import socket
import time
from urllib.parse import urlparse

import httpx

MANY_LOGPROBS = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True, "logprobs": True,
                 "top_logprobs": 20, "n": 16, "max_tokens": 200}
# Four megabytes as an answer, and more than twice as much memory, since a text doubles as it grows.
LARGE = {"prompt": "".join(chr(33 + 7 * idx % 90) for idx in range(500_000)), "return_token_strs": True}


@contextlib.contextmanager
def reader(server, body, path="/tokenize"):
    """A client that has asked, and reads when it likes."""
    address = urlparse(server.url)
    content = json.dumps(body).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((address.hostname, address.port))
        client.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        yield client


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_answer_of_many_log_probabilities_keeps_to_its_memory(start):
    server = start("--max-answer-memory", "1MB")
    refused = server.post("/v1/chat/completions", json=MANY_LOGPROBS)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["code"] == "answer_too_large"
    assert "--max-answer-memory" in refused.json()["error"]["message"]
    prompts = ["x" * 400] * 16
    refused = server.post("/v1/completions", json={"prompt": prompts, "echo": True, "logprobs": 20, "max_tokens": 0})
    assert refused.json()["error"]["code"] == "answer_too_large", refused.text
    assert server.metric("answers_refused_total") == 2
    server.wait_until_idle()
    wait_for(lambda: server.metric("answer_memory_bytes") == 0)
    assert server.post("/v1/chat/completions", json={**MANY_LOGPROBS, "n": 1, "max_tokens": 5}).status_code == 200


def test_its_memory_is_given_back_when_it_is_sent(start):
    server = start()
    answer = server.post("/v1/chat/completions", json=MANY_LOGPROBS).json()
    assert [len(choice["logprobs"]["content"]) for choice in answer["choices"]] == [200] * 16
    assert {len(token["top_logprobs"]) for token in answer["choices"][15]["logprobs"]["content"]} == {20}
    wait_for(lambda: server.metric("answer_memory_bytes") == 0)
    assert server.metric("request_memory_bytes") == 0


def test_the_client_that_has_not_read_for_longest_makes_room(start):
    server = start("--max-answer-memory", "48MB")
    with contextlib.ExitStack() as clients:
        readers = []
        for count in range(8):
            readers.append(clients.enter_context(reader(server, LARGE)))
            wait_for(lambda: server.metric("unread_answers") + server.metric(
                "slow_readers_closed_total", reason="memory") == count + 1)
            assert server.metric("unread_answer_bytes") <= 48e6
            assert server.metric("answers_refused_total") == 0
        num_closed = int(server.metric("slow_readers_closed_total", reason="memory"))
        assert 1 <= num_closed < 8
        # The others get all of theirs.
        for number, client in enumerate(readers):
            client.settimeout(60)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while not received.endswith(b"]}") and (part := client.recv(1 << 20)):
                    received += part
            assert received.endswith(b"]}") == (number >= num_closed), number
    wait_for(lambda: server.metric("unread_answers") == server.metric("answer_memory_bytes") == 0)


def test_a_client_that_reads_slowly_but_steadily_gets_all_of_its_answer(start):
    server = start("--write-timeout", "1")
    with reader(server, {**LARGE, "prompt": 2 * LARGE["prompt"]}) as client:
        received = 0
        tail = b""
        while not tail.endswith(b"]}"):
            part = client.recv(64 << 10)
            assert part, f"closed after {received} bytes"
            received += len(part)
            tail = (tail + part)[-2:]
            # 8 MB fit no socket's buffer: at this pace, three times the time-out passes.
            time.sleep(len(part) / 2.5e6)
        assert received > 8_000_000
    assert server.metric("slow_readers_closed_total", reason="timeout") == 0


def test_a_client_that_stops_reading_is_closed_after_the_time_out(start):
    server = start("--write-timeout", "0.5")
    with reader(server, {**LARGE, "prompt": 2 * LARGE["prompt"]}):
        wait_for(lambda: server.metric("slow_readers_closed_total", reason="timeout") == 1)
    assert httpx.get(server.url + "/health").status_code == 200


def test_what_a_request_keeps_counts_until_it_is_answered(start):
    server = start()
    asked = {"prompt": [7] * 200, "n": 64, "max_tokens": 500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=asked, timeout=60) as stream:
        next(stream.iter_lines())
        # Its tokens, here and in each sequence, four bytes each; the body is gone.
        assert server.metric("request_memory_bytes") == 4 * 200 * 65
    server.wait_until_idle()
    wait_for(lambda: server.metric("request_memory_bytes") == 0)


def test_stored_conversations_are_counted(start):
    server = start()
    before = server.metric("stored_response_bytes")
    server.post("/v1/responses", json={"input": "x" * 500, "max_output_tokens": 2})
    assert before == 0 and 1000 < server.metric("stored_response_bytes") < 3000, "the input twice, and the answer"
