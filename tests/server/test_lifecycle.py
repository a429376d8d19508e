"""Clients that leave, connections that wait, and the server's own end."""

import json
import re
import signal
import socket
import subprocess
import threading
import time
from urllib.parse import urlparse

import httpx
import pytest

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
LONG = {"messages": HELLO, "ignore_eos": True}


def connect(server):
    address = urlparse(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=30)


def raw_post(body):
    content = json.dumps(body).encode()
    return (f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n").encode() + content


def test_by_default_all_sequences_may_fill_the_context(start):
    log = "".join(start("--max-num-seqs", "3").log)
    assert re.search("room for 3 full contexts of 1024 tokens; up to 3 sequences run", log), log


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_leaving_frees_everything(server, stream, n):
    aborted = server.metric("request_success_total", finished_reason="abort") or 0
    clients = []
    for _ in range(5):
        client = connect(server)
        client.sendall(raw_post({**LONG, "stream": stream, "n": n}))
        clients.append(client)
    deadline = time.monotonic() + 20
    while not server.metric("num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.005)
    for client in clients:
        client.close()
    server.wait_until_idle()
    assert server.metric("request_success_total", finished_reason="abort") > aborted


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_has_sent_its_last_byte_gets_its_answer(server, stream, version):
    body = {**LONG, "max_tokens": 200, "seed": 1, "stream": stream}
    whole = server.post(CHAT, json={**body, "stream": False}).json()["choices"][0]["message"]
    with connect(server) as client:
        client.sendall(raw_post(body).replace(b"HTTP/1.1", b"HTTP/" + version.encode()))
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    # What it is probed with is for clients to pass over.
    assert answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 200 OK"), answer[:100]
    if not stream:
        assert json.loads(answer.rsplit(b"\r\n\r\n", 1)[1])["choices"][0]["message"] == whole
        return
    events = [json.loads(line[6:]) for line in answer.decode().splitlines() if line.startswith("data: {")]
    for part in ("content", "reasoning"):
        streamed = "".join(event["choices"][0]["delta"].get(part) or "" for event in events)
        assert streamed == (whole.get(part) or "")
    assert b"data: [DONE]" in answer


def test_pipelined_requests_are_answered_in_order(server):
    with connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\n"
                       b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b"status") < answer.index(b"version")


def test_expect_continue(server):
    with connect(server) as client:
        head, _, body = raw_post({**LONG, "max_tokens": 2}).partition(b"\r\n\r\n")
        client.sendall(head + b"\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 100")
        client.sendall(body)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")


def test_http_1_0_stream_ends_with_the_connection(server):
    with connect(server) as client:
        client.sendall(raw_post({**LONG, "max_tokens": 3, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b"chunked" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


def test_garbage_is_a_400(server):
    with connect(server) as client:
        client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400")


def test_slow_and_idle_clients_are_dropped(start):
    server = start("--idle-timeout", "0.5", "--request-timeout", "1")
    with connect(server) as idle, connect(server) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost")
        assert idle.recv(10) == b""
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
    assert server.stop() == 0


def test_two_thousand_idle_connections(server):
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2500:
        pytest.skip(f"at most {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = []
    try:
        for _ in range(2000):
            client = connect(server)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            clients.append(client)
        for client in clients:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert server.post(CHAT, json={**LONG, "max_tokens": 2}).status_code == 200
        for client in clients[::100]:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sigterm_finishes_what_is_open(start):
    server = start()
    chunks = []
    first = threading.Event()

    def read():
        with httpx.stream("POST", server.url + CHAT, json={**LONG, "max_tokens": 900, "stream": True},
                          timeout=60) as response:
            for line in response.iter_lines():
                chunks.append(line)
                first.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(30)
    with connect(server) as idle:
        server.process.send_signal(signal.SIGTERM)
        assert idle.recv(10) == b"", "idle connections close at once"
    for path in ("/health", "/v1/models"):
        refused = httpx.get(server.url + path)
        assert refused.status_code == 503, "newcomers hear that it ends"
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "shutting_down"
    silent = connect(server)  # A newcomer who says nothing holds nothing up.
    reader.join(60)
    assert "data: [DONE]" in chunks
    assert server.stop() == 0
    silent.close()
    with pytest.raises(OSError):
        connect(server)


def test_further_sigterms_do_not_change_the_exit_code(start):
    """Not even those that come when the server is gone and the process tidies up."""
    server = start()
    assert httpx.get(server.url + "/health").status_code == 200
    while server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    assert server.stop() == 0


def test_sigterm_answers_what_has_come_before_it(start):
    """Connections that the kernel holds, and requests on open ones, that nobody had looked at yet."""
    server = start()
    clients = [connect(server) for _ in range(3)]
    assert httpx.get(server.url + "/health").status_code == 200  # The three are accepted.
    server.process.send_signal(signal.SIGSTOP)
    clients += [connect(server) for _ in range(5)]
    silent = connect(server)
    for client in clients:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGCONT)
    for client in clients:
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")), answer
        client.close()
    assert silent.recv(10) == b""
    silent.close()
    assert server.process.wait(10) == 0


def test_sigterm_gives_up_after_the_timeout(start):
    server = start("--shutdown-timeout", "0.2", "--max-num-seqs", "1")
    clients = [connect(server) for _ in range(8)]
    for client in clients:
        client.sendall(raw_post({**LONG, "stream": True, "n": 4}))
    assert clients[0].recv(1000).startswith(b"HTTP/1.1 200")
    assert server.stop() == 0
    rest = b"".join(iter(lambda: clients[0].recv(65536), b""))
    assert b'"error"' in rest and b'"finish_reason":"length"' not in rest, rest[-500:]
    for client in clients:
        client.close()


@pytest.mark.parametrize("path, body, last", [
    ("/v1/chat/completions", {"messages": HELLO}, "[DONE]"),
    ("/v1/responses", {"input": "Hello"}, '{"type":"response.failed"'),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 900}, '{"type":"error"'),
])
def test_a_stream_that_is_given_up_ends_as_its_api_says(start, path, body, last):
    server = start("--shutdown-timeout", "0.1", "--max-num-seqs", "1")
    with connect(server) as other:
        other.sendall(raw_post({**LONG, "stream": True, "n": 100}))  # nobody else has a turn in time
        assert other.recv(1000).startswith(b"HTTP/1.1 200")
        with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=60) as response:
            server.process.send_signal(signal.SIGTERM)
            events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert events[-1].startswith(last), events[-2:]
    assert "shutting down" in events[-2 if last == "[DONE]" else -1]


def test_flags_come_from_the_environment_too(start, monkeypatch):
    monkeypatch.setenv("LAPIDARY_SERVED_MODEL_NAME", "first,second")
    monkeypatch.setenv("LAPIDARY_METRICS_PREFIX", "vllm")
    server = start()
    with server.client() as client:
        assert [model.id for model in client.models.list().data] == ["first", "second"]
        response = client.completions.create(model="second", prompt="x", max_tokens=1)
        assert response.model == "first"
    assert "vllm:num_requests_running" in httpx.get(server.url + "/metrics").text
    assert server.stop() == 0


def test_any_name_of_a_model_will_do_where_the_operator_says_so(start):
    for names, listed in ((["*"], ["tiny"]), (["gemma,*"], ["gemma"])):
        server = start("--served-model-name", *names)
        with server.client() as client:
            assert [model.id for model in client.models.list().data] == listed
            assert client.models.retrieve("claude-sonnet-4-5").id == "claude-sonnet-4-5"
            answer = client.completions.create(model="claude-sonnet-4-5", prompt="x", max_tokens=1)
            assert answer.model == listed[0]
        assert server.stop() == 0


def test_a_port_that_is_taken_is_refused_before_the_weights_are_read(request, checkpoint, server):
    port = str(httpx.URL(server.url).port)
    for flags, words in ((["--port", port], "--port names another one"),
                         (["--host", "no.such.host.invalid"], "--host no.such.host.invalid")):
        done = subprocess.run([request.config.getoption("--lapidary"), "serve", str(checkpoint), *flags],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert words in done.stderr
        assert " loading " not in done.stderr


def test_a_model_is_served_under_its_own_name_whatever_its_tokenizer(start, checkpoint):
    server = start("--load-format", "dummy", "--tokenizer", str(checkpoint), model="tiny-e")
    with server.client() as client:
        assert [model.id for model in client.models.list().data] == ["tiny-e"]
        assert client.completions.create(model="tiny-e", prompt="x", max_tokens=1).model == "tiny-e"
    assert server.stop() == 0


def test_a_client_that_does_not_read_is_dropped(start):
    server = start("--write-timeout", "0.5", "--max-num-seqs", "128")
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Twenty log-probabilities a token make about a hundred megabytes, more than any socket holds.
        client.sendall(raw_post({**LONG, "stream": True, "n": 64, "logprobs": True, "top_logprobs": 20}))
        deadline = time.monotonic() + 120
        while not server.metric("request_success_total", finished_reason="abort"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.wait_until_idle()
    assert server.stop() == 0
