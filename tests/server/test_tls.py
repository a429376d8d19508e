"""HTTPS: what works, what is refused, and what bad files are told."""

import json
import signal
import socket
import ssl
import subprocess
import time
from urllib.parse import urlparse

import httpx
import pytest


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Two self-signed certificates with their keys, and an encrypted key."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "two"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", folder / f"{name}.key", "-out",
                folder / f"{name}.crt")
    openssl("rsa", "-in", folder / "one.key", "-aes256", "-passout", "pass:secret", "-out", folder / "locked.key")
    (folder / "both.pem").write_text((folder / "one.crt").read_text() + (folder / "one.key").read_text())
    (folder / "empty").write_text("")
    (folder / "text").write_text("no certificate\n")
    return folder


@pytest.fixture(scope="session")
def tls_server(start, files):
    return start("--ssl-certfile", str(files / "one.crt"), "--ssl-keyfile", str(files / "one.key"),
                 "--request-timeout", "1")


@pytest.fixture
def trust(files):
    return ssl.create_default_context(cafile=str(files / "one.crt"))


def connect(server):
    address = urlparse(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=30)


def test_the_openai_client_over_https(tls_server, trust, hello):
    assert tls_server.url.startswith("https://")
    with tls_server.client(http_client=httpx.Client(verify=trust)) as client:
        whole = client.chat.completions.create(model="tiny", messages=hello, max_tokens=30, seed=1)
        chunks = client.chat.completions.create(model="tiny", messages=hello, max_tokens=30, seed=1, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == (whole.choices[0].message.content or "")


def test_large_bodies_and_many_requests_on_a_connection(tls_server, trust):
    with httpx.Client(verify=trust, timeout=60) as client:
        for _ in range(20):
            assert client.get(tls_server.url + "/health").status_code == 200
        answer = client.post(tls_server.url + "/tokenize", json={"prompt": "stone " * 100_000})
        assert answer.json()["count"] > 100_000
        assert client.post(tls_server.url + "/tokenize", content=b"x" * (9 << 20)).status_code == 413


def test_old_protocols_are_refused(tls_server, files):
    context = ssl.create_default_context(cafile=str(files / "one.crt"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with connect(tls_server) as raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw, server_hostname="localhost")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_closing_answer_ends_as_tls_wants_it(tls_server, trust, version):
    trust.minimum_version = trust.maximum_version = version
    with connect(tls_server) as raw, trust.wrap_socket(raw, server_hostname="localhost",
                                                       suppress_ragged_eofs=False) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("pipelined", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_an_answer_given_up_ends_as_tls_wants_it(start, files, trust, hello, pipelined):
    server = start("--ssl-certfile", str(files / "one.crt"), "--ssl-keyfile", str(files / "one.key"),
                   "--shutdown-timeout", "0.1", "--max-num-seqs", "1")
    body = json.dumps({"messages": hello, "ignore_eos": True, "stream": True, "n": 8}).encode()
    with connect(server) as raw, trust.wrap_socket(raw, server_hostname="localhost",
                                                   suppress_ragged_eofs=False) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s%s"
                       % (len(body), body, pipelined))
        answer = client.recv(65536)
        server.process.send_signal(signal.SIGTERM)
        answer += b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"shutting_down"' in answer[-1000:] and b"data: [DONE]" in answer[-100:], answer[-1000:]
    assert answer.endswith(b"\r\n0\r\n\r\n")
    assert server.stop() == 0


def test_plain_http_is_told_to_use_https(tls_server):
    with connect(tls_server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400") and b"https://" in answer


def test_garbage_closes_the_connection_and_nothing_else(tls_server, trust):
    with connect(tls_server) as client:
        client.sendall(b"\x16\x03\x01\xff\xff" + b"\x00" * 100)
        client.sendall(b"\xff" * 100_000)
        try:
            while client.recv(65536):
                pass
        except OSError:
            pass
    assert httpx.get(tls_server.url + "/health", verify=trust).status_code == 200


def test_a_slow_handshake_times_out(tls_server):
    with connect(tls_server) as silent, connect(tls_server) as slow:
        slow.sendall(b"\x16\x03\x01")
        assert silent.recv(10) == b""
        assert slow.recv(10) == b""


def test_leaving_over_tls_frees_everything(tls_server, trust, hello):
    def metric(name):
        text = httpx.get(tls_server.url + "/metrics", verify=trust).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith(f"lapidary:{name}{{"))

    body = json.dumps({"messages": hello, "ignore_eos": True, "n": 8}).encode()
    with connect(tls_server) as raw, trust.wrap_socket(raw, server_hostname="localhost") as client:
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        client.sendall(body)
        deadline = time.monotonic() + 20
        while not metric("num_requests_running") and time.monotonic() < deadline:
            time.sleep(0.005)
    deadline = time.monotonic() + 10
    while metric("num_requests_running") or metric("kv_cache_usage_perc"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_file_may_hold_both_and_a_key_may_be_locked(start, files, trust, monkeypatch):
    server = start("--ssl-certfile", str(files / "both.pem"))
    assert httpx.get(server.url + "/health", verify=trust).status_code == 200
    assert server.stop() == 0
    monkeypatch.setenv("LAPIDARY_SSL_KEYFILE_PASSWORD", "secret")
    server = start("--ssl-certfile", str(files / "one.crt"), "--ssl-keyfile", str(files / "locked.key"))
    assert httpx.get(server.url + "/health", verify=trust).status_code == 200
    assert server.stop() == 0


def refusal(request, checkpoint, *flags):
    """What `serve` says on its way out, having read no model."""
    result = subprocess.run([request.config.getoption("--lapidary"), "serve", str(checkpoint), "--port", "0", *flags],
                            capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert result.returncode == 1
    assert "loading" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("cert,key,password,words", [
    ("missing.crt", "one.key", None, ["--ssl-certfile", "missing.crt"]),
    ("one.crt", "missing.key", None, ["--ssl-keyfile", "missing.key"]),
    ("empty", "one.key", None, ["--ssl-certfile", "empty"]),
    ("text", "one.key", None, ["--ssl-certfile", "not a certificate"]),
    ("one.crt", "text", None, ["--ssl-keyfile", "not a private key"]),
    ("one.crt", "two.key", None, ["--ssl-keyfile", "does not belong"]),
    ("one.crt", "locked.key", None, ["--ssl-keyfile-password is missing"]),
    ("one.crt", "locked.key", "wrong", ["--ssl-keyfile-password is wrong"]),
    ("one.crt", None, None, ["--ssl-certfile", "holds no private key: --ssl-keyfile"]),
    (None, "one.key", None, ["--ssl-keyfile needs --ssl-certfile"]),
])
def test_bad_files_are_named_before_the_model_is_loaded(request, checkpoint, files, cert, key, password, words):
    flags = []
    for flag, name in (("--ssl-certfile", cert), ("--ssl-keyfile", key)):
        flags += [flag, str(files / name)] if name else []
    flags += ["--ssl-keyfile-password", password] if password else []
    message = refusal(request, checkpoint, *flags)
    for word in words:
        assert word in message


def test_a_wrong_password_is_told_even_when_it_decrypts_to_bytes_that_look_padded(request, checkpoint, files):
    """One wrong password in 256 does; a key behind one round of hashing makes the search for one short."""
    certificate, key = str(files / "one.crt"), str(files / "weak.key")
    openssl("pkcs8", "-topk8", "-in", files / "one.key", "-iter", "1", "-passout", "pass:secret", "-out", key)
    for number in range(10_000):
        tried = subprocess.run(["openssl", "pkey", "-in", key, "-passin", f"pass:wrong{number}", "-noout"],
                               capture_output=True, text=True)
        assert tried.returncode != 0
        if "bad decrypt" not in tried.stderr:
            break
    else:
        pytest.fail("every wrong password was found by its padding")
    flags = ("--ssl-certfile", certificate, "--ssl-keyfile", key, "--ssl-keyfile-password", f"wrong{number}")
    assert "--ssl-keyfile-password is wrong" in refusal(request, checkpoint, *flags)


def test_sighup_reads_the_certificate_anew(start, files, tmp_path):
    for name in ("crt", "key"):
        (tmp_path / f"now.{name}").write_text((files / f"one.{name}").read_text())
    server = start("--ssl-certfile", str(tmp_path / "now.crt"), "--ssl-keyfile", str(tmp_path / "now.key"))

    def certificate():
        address = urlparse(server.url)
        return ssl.get_server_certificate((address.hostname, address.port)).strip()

    def hang_up(until):
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while not any(until in line for line in list(server.log)):
            assert time.monotonic() < deadline, server.log
            time.sleep(0.02)

    assert certificate() == (files / "one.crt").read_text().strip()
    (tmp_path / "now.crt").write_text("no certificate\n")
    hang_up("the old certificate stays in use")
    assert certificate() == (files / "one.crt").read_text().strip()
    for name in ("crt", "key"):
        (tmp_path / f"now.{name}").write_text((files / f"two.{name}").read_text())
    hang_up("new connections use the certificate as it is now")
    assert certificate() == (files / "two.crt").read_text().strip()
