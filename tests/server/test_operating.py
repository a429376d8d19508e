"""What an operator sees and sets: the log, limits, signals."""

import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest

from raw_client import COMPLETIONS, request_bytes
from server_process import ServerProcess

ASK = {"prompt": "Hello", "max_tokens": 3}


def lines_with(server, text, seconds=5):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := [line for line in list(server.log) if text in line]:
            return found
        time.sleep(0.02)
    return []


def talk(server, data, seconds=20):
    """Everything the server says to these bytes until it closes."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), timeout=seconds) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def test_a_request_id_comes_back_and_into_the_log(server):
    given = httpx.get(server.url + "/version", headers={"X-Request-Id": "my-id-7"})
    assert given.headers["x-request-id"] == "my-id-7"
    assert "/version" in lines_with(server, "my-id-7")[0]
    made = server.post("/v1/completions", json=ASK)
    [line] = lines_with(server, made.headers["x-request-id"])
    assert " 200 " in line and f" {made.json()['usage']['prompt_tokens']} + 3 tokens" in line
    for hostile in ("a\tb", "x" * 500):
        assert httpx.get(server.url + "/version", headers={"X-Request-Id": hostile}).headers["x-request-id"] != hostile


def test_the_access_log_can_be_json_or_off(start):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    server = start("--access-log", "json")
    server.post("/v1/completions", json=ASK, headers={"X-Request-Id": "id-json", "traceparent": trace})
    [line] = lines_with(server, "id-json")
    record = json.loads(line)
    assert (record["status"], record["path"], record["completion_tokens"]) == (200, "/v1/completions", 3)
    assert (record["client"], record["model"]) == ("127.0.0.1", "tiny")
    assert abs(datetime.datetime.fromisoformat(record["time"]).timestamp() - time.time()) < 60
    assert record["traceparent"] == trace
    silent = start("--access-log", "off")
    silent.post("/v1/completions", json=ASK, headers={"X-Request-Id": "id-off"})
    assert not lines_with(silent, "id-off", seconds=0.5)


def test_the_log_tells_the_speed_every_ten_seconds(start):
    server = start("--log-level", "debug")
    server.post("/v1/completions", json=ASK)
    [line] = lines_with(server, "tokens/s generated", seconds=20)
    assert "0 running, 0 waiting" in line
    assert " us a row" in lines_with(server, "a step costs")[0]


def test_every_status_is_counted(start):
    server = start("--api-key", "sesame")
    key = {"Authorization": "bEaReR sesame"}
    assert server.post("/v1/completions", json=ASK, headers=key).status_code == 200
    assert server.post("/v1/completions", json={}, headers=key).status_code == 400
    assert server.post("/v1/completions", json=ASK).status_code == 401
    assert httpx.get(server.url + "/nowhere", headers=key).status_code == 404
    text = httpx.get(server.url + "/metrics", headers=key).text
    counts = {(line.split('handler="')[1].split('"')[0], line.split('status="')[1].split('"')[0])
              for line in text.splitlines() if line.startswith("lapidary:http_requests_total{")}
    assert {("/v1/completions", "200"), ("/v1/completions", "400"), ("/v1/completions", "401"),
            ("other", "404")} <= counts


def test_a_silent_stream_gets_comments(start):
    server = start("--comment-interval", "0.01", "--max-num-seqs", "1")
    holder = threading.Thread(target=lambda: server.post(
        "/v1/completions", json={"prompt": "Hello", "max_tokens": 900, "ignore_eos": True}))
    holder.start()
    while not server.metric("num_requests_running"):
        time.sleep(0.001)
    with httpx.stream("POST", server.url + "/v1/completions", json={**ASK, "stream": True}, timeout=60) as response:
        text = "".join(response.iter_text())
    holder.join()
    assert text.endswith("data: [DONE]\n\n")
    assert text.startswith(": "), "it waited for the other, and was told so"
    assert [line for line in text.split("\n") if line.startswith("data: {")]


def test_a_slow_request_is_told_so(start):
    server = start("--request-timeout", "0.3")
    answer = talk(server, request_bytes(ASK, COMPLETIONS)[:-5])
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"0.3 s" in answer


@pytest.mark.parametrize("head, status", [
    (b"GET /version HTTP/1.1\r\n", 400),
    (b"GET /version HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n", 415),
])
def test_heads_that_cannot_be_right_are_refused(server, head, status):
    assert talk(server, head + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 %d " % status)


def test_one_connection_too_many_is_told_so(start):
    server = start("--max-connections", "2")
    with httpx.Client() as first, httpx.Client() as second:
        assert first.get(server.url + "/health").status_code == 200
        assert second.get(server.url + "/health").status_code == 200
        third = httpx.get(server.url + "/health")
        assert third.status_code == 503
        assert third.json()["error"]["code"] == "too_many_connections"
    time.sleep(0.2)
    assert httpx.get(server.url + "/health").status_code == 200


def test_sighup_drains_where_there_is_no_certificate(start):
    server = start()
    os.kill(server.process.pid, signal.SIGHUP)
    assert server.process.wait(20) == 0


def test_an_empty_key_is_refused(request, checkpoint):
    done = subprocess.run([request.config.getoption("--lapidary"), "serve", str(checkpoint)], capture_output=True,
                          text=True, timeout=60, env={**os.environ, "LAPIDARY_API_KEY": ""})
    assert done.returncode == 1
    assert "LAPIDARY_API_KEY is empty" in done.stderr


def test_a_scheme_is_written_in_any_case(start):
    server = start("--api-key", "sesame")
    for header, status in (("bearer sesame", 200), ("BEARER  sesame", 200), ("Basic sesame", 401), ("sesame", 401)):
        assert server.post("/v1/completions", json=ASK, headers={"Authorization": header}).status_code == status, header


def unfinished_head(framing):
    return f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode()


def wait_for_status(server, body, status, seconds=20):
    deadline = time.monotonic() + seconds
    while server.post("/v1/completions", json=body).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_requests_share_a_bounded_memory(start):
    server = start("--max-request-memory", "1MB", "--max-body-bytes", "900kB")
    # Unfinished bodies count as well, but leave room for small ones.
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as holder:
        holder.sendall(unfinished_head("Content-Length: 800000") + b" " * 799_999)
        wait_for_status(server, {"prompt": "x" * 300000}, 503)
        refused = server.post("/v1/completions", json={"prompt": "x" * 300000})
        assert refused.json()["error"]["code"] == "out_of_memory"
        assert refused.headers["Retry-After"] == "1"
        assert server.post("/v1/completions", json=ASK).status_code == 200
    wait_for_status(server, {"prompt": "x" * 300000}, 400)


@pytest.mark.parametrize("way", ["announced", "chunked", "parsed"])
def test_what_all_the_memory_would_not_hold_is_too_large(start, way):
    server = start("--max-request-memory", "1MB", "--max-body-bytes", "9MB")
    if way == "parsed":  # a short text, a large tree
        refused = server.post("/v1/completions", json={"prompt": [[1]] * 20000})
    else:
        body = json.dumps({"prompt": "x" * 2_000_000}).encode()
        refused = server.post("/v1/completions", content=body if way == "announced" else iter([body]))
    assert refused.status_code == 413
    assert "it may have 875000 (--max-request-memory of the server)" in refused.json()["error"]["message"]
    assert "Retry-After" not in refused.headers
    assert server.post("/v1/completions", json=ASK).status_code == 200


@pytest.mark.parametrize("is_chunked", [False, True])
def test_bodies_that_are_only_announced_take_no_memory(start, is_chunked):
    server = start("--max-request-memory", "1MB", "--max-body-bytes", "900kB")
    with contextlib.ExitStack() as holders:
        for size in (800_000, 400_000, 100_000, 50_000, 20_000, 10_000, 1_000, 100, 40):
            holder = holders.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)))
            holder.sendall(unfinished_head("Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"))
        time.sleep(0.2)
        assert server.post("/v1/completions", json=ASK).status_code == 200


@pytest.mark.skipif("LAPIDARY_SANITIZED" in os.environ, reason="sanitizers reserve more than any limit")
def test_large_requests_do_not_end_a_server_with_little_memory(request, checkpoint, tmp_path):
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/bash\nulimit -v 600000\nexec {request.config.getoption("--lapidary")} "$@"\n')
    limited.chmod(0o755)
    server = ServerProcess(str(limited), str(checkpoint), "--threads", "1", "--max-body-bytes", "9MB", "--device", "cpu",
                           "--kv-cache-memory-bytes", "64MB")
    body = json.dumps({"prompt": [[1]] * 1_200_000}).encode()

    def ask():
        statuses.append(httpx.post(server.url + "/v1/completions", content=body, timeout=60).status_code)

    statuses = []
    clients = [threading.Thread(target=ask) for _ in range(9)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert statuses == [413] * 9
    assert httpx.post(server.url + "/v1/completions", json=ASK, timeout=60).status_code == 200
    assert server.stop() == 0


def test_a_chat_that_cannot_fit_is_refused_before_it_is_rendered(server):
    calls = []
    for idx in range(2000):
        calls.append({"role": "assistant", "content": None, "tool_calls": [
            {"id": f"c{idx}", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
        calls.append({"role": "tool", "tool_call_id": f"c{idx}", "content": "1"})
    response = server.post("/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "Hello"}, *calls]})
    assert response.status_code == 400
    assert "too many messages" in response.json()["error"]["message"]


@pytest.fixture(scope="module")
def long_server(start, checkpoint, tmp_path_factory):
    """A context in which thousands of messages might fit."""
    path = tmp_path_factory.mktemp("models") / "long"
    shutil.copytree(checkpoint, path)
    config = json.loads((path / "config.json").read_text())
    config["max_position_embeddings"] = 65536
    (path / "config.json").write_text(json.dumps(config))
    return start("--max-model-len", "65536", "--max-num-seqs", "1", model=path)


def answers_beside(server, path, bodies):
    """Whether a short request is answered while most of these, which take long to prepare, still wait."""
    clients = [threading.Thread(target=server.post, args=[path], kwargs={"json": body}) for body in bodies]
    for client in clients:
        client.start()
    time.sleep(0.3)
    assert server.post("/tokenize", json={"prompt": "Hello"}).status_code == 200
    num_waiting = sum(client.is_alive() for client in clients)
    for client in clients:
        client.join()
    return num_waiting > len(clients) / 2


def test_many_short_messages_hold_up_no_other_request(long_server):
    assert answers_beside(long_server, "/tokenize", [{"messages": [{"role": "user", "content": ""}] * 1500}] * 16)


def test_forms_that_take_long_to_compile_hold_up_no_other_request(server):
    def schema(number):
        string = {"type": "string", "pattern": "^(a|b)*c{3,90}$"}
        return {"type": "object", "properties": {f"p{number}-{idx}": {**string, "minLength": idx} for idx in range(300)},
                "additionalProperties": {"not": {"type": "string"}}}

    assert answers_beside(server, "/v1/completions", [{**ASK, "guided_json": schema(number)} for number in range(8)])


def test_messages_that_cannot_be_rendered_are_said_to_be_too_many(long_server):
    error = long_server.post("/tokenize", json={"messages": [{"role": "user", "content": ""}] * 6000}).json()["error"]
    assert "too many messages: 6000" in error["message"]


def test_too_little_memory_for_kv_names_the_flags(request, checkpoint):
    for memory in ("10kB", "3MB"):
        done = subprocess.run([request.config.getoption("--lapidary"), "serve", str(checkpoint), "--device", "cpu", "--port", "0",
                               "--max-model-len", "4096", "--kv-cache-memory-bytes", memory],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "--kv-cache-memory-bytes" in done.stderr, memory


@pytest.mark.parametrize("ranks", ["2", "4"])
def test_ranks_that_share_a_model_answer_as_one(start, server, ranks):
    several = start("--device", "cpu", "-tp", ranks)
    assert lines_with(several, f"on each of {ranks} ranks")
    for prompt in ("Hello", "the same again " * 30, "the same again " * 30 + "and more"):
        asked = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
        answers = [httpx.post(one.url + COMPLETIONS, json=asked).json()["choices"][0]["text"] for one in (server, several)]
        assert answers[0] == answers[1]


def test_flags_of_another_server_get_a_sentence(request, start, checkpoint):
    done = subprocess.run([request.config.getoption("--lapidary"), "serve", "--pipeline-parallel-size", "2", str(checkpoint)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "--pipeline-parallel-size: a model runs on one GPU here" in done.stderr
    server = start("--dtype", "auto", "--enable-auto-tool-choice", "--tool-call-parser", "gemma4")
    assert lines_with(server, "--dtype is not needed")
    assert lines_with(server, "--tool-call-parser is not needed")
