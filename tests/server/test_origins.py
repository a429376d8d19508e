"""Which web pages may use the server through a browser."""

import socket
import subprocess
from urllib.parse import urlparse

import httpx
import pytest

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def ask(server, headers):
    return httpx.post(server.url + CHAT, json=HELLO, headers=headers, timeout=60)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
def test_pages_from_elsewhere_are_refused(server, origin, path):
    # text/plain is what a page can send without asking first.
    response = server.post(path, content="{}", headers={"Origin": origin, "Content-Type": "text/plain"})
    assert response.status_code == 403
    error = response.json()["error"]
    assert error["code"] == "origin_not_allowed"
    assert origin in error["message"] and "--allowed-origins" in error["message"]
    assert "access-control-allow-origin" not in response.headers
    assert httpx.options(server.url + path, headers={"Origin": origin}).status_code == 403


def test_own_page_and_programs_pass(server):
    assert ask(server, {"Origin": server.url}).status_code == 200
    assert ask(server, {}).status_code == 200
    port = urlparse(server.url).port
    named = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
    assert ask(server, named).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.1"])
def test_rebound_names_are_refused_on_loopback(server, host):
    port = urlparse(server.url).port
    rebound = {"Host": f"{host}:{port}", "Origin": f"http://{host}:{port}"}
    for headers in (rebound, {"Host": rebound["Host"]}):
        response = ask(server, headers)
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "host_not_allowed"
    assert httpx.get(server.url, headers={"Host": host}).status_code == 403
    assert httpx.get(server.url + "/metrics", headers={"Host": host}).status_code == 403


def test_http_1_0_without_a_host_passes(server):
    address = urlparse(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_other_addresses_answer_to_any_name(start):
    server = start("--host", "0.0.0.0")
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    host = f"gpu-box.example:{urlparse(url).port}"
    assert httpx.get(url + "/v1/models", headers={"Host": host}).status_code == 200
    assert httpx.post(url + CHAT, json=HELLO, headers={"Host": host, "Origin": "http://" + host}).status_code == 200
    assert httpx.post(url + CHAT, json=HELLO,
                      headers={"Host": host, "Origin": "https://evil.example"}).status_code == 403
    assert server.stop() == 0


def test_allowed_hosts_are_the_names_of_a_server_on_all_addresses(start):
    server = start("--host", "0.0.0.0", "--allowed-hosts", "gpu-box.example,llm.example")
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    port = urlparse(url).port
    for host, status in (("gpu-box.example", 200), (f"LLM.example:{port}", 200), ("evil.example", 403),
                         ("gpu-box.example.evil.example", 403)):
        answer = httpx.get(url + "/v1/models", headers={"Host": host})
        assert answer.status_code == status, host
        if status == 403:
            assert answer.json()["error"]["code"] == "host_not_allowed" and "--allowed-hosts" in answer.text
    assert server.stop() == 0


def test_allowed_origins_let_pages_and_names_in(start):
    server = start("--allowed-origins", "https://app.example,http://localhost:5173")
    for origin in ("https://app.example", "http://localhost:5173"):
        response = ask(server, {"Origin": origin})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == origin
    assert ask(server, {"Host": "app.example", "Origin": "https://app.example"}).status_code == 200
    assert ask(server, {"Origin": "https://other.example"}).status_code == 403
    assert ask(server, {"Host": "other.example"}).status_code == 403
    assert server.stop() == 0


def test_a_star_lets_everybody_in(start):
    server = start("--allowed-origins", "*")
    response = ask(server, {"Host": "any.example", "Origin": "https://any.example"})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    assert server.stop() == 0


def test_what_is_no_origin_is_told_at_start(request, checkpoint):
    program = request.config.getoption("--lapidary")
    run = subprocess.run([program, "serve", checkpoint, "--port", "0", "--allowed-origins", "https://app.example/chat"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "--allowed-origins" in run.stderr and "https://app.example" in run.stderr
