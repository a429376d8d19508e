"""What the server says about the chat page; test_chat_page.py has a browser open it."""

import subprocess

import httpx
import pytest


def test_page_is_one_file_with_strict_headers(server):
    page = httpx.get(server.url)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-frame-options"] == "DENY"
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'" and policy["frame-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    for kind in ("script-src", "style-src"):
        assert policy[kind].startswith("'sha256-") and " " not in policy[kind], policy[kind]
    assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "'none'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert len(page.content) < 150_000
    for outside in ('src="http', 'href="http', "@import", "url("):
        assert outside not in page.text


def test_page_is_kept_by_the_browser_and_asked_for_again(server):
    page = httpx.get(server.url)
    assert page.headers["cache-control"] == "no-cache"
    etag = page.headers["etag"]
    again = httpx.get(server.url, headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag
    assert "content-length" not in again.headers
    assert httpx.get(server.url, headers={"If-None-Match": '"another"'}).status_code == 200


def test_head_of_the_page(server):
    page, head = httpx.get(server.url), httpx.head(server.url)
    assert head.status_code == 200
    assert head.content == b""
    assert int(head.headers["content-length"]) == len(page.content)
    assert head.headers["etag"] == page.headers["etag"]
    assert httpx.post(server.url, content="x").status_code == 405


def test_page_needs_no_key_but_the_api_does(start):
    server = start("--api-key", "k")
    assert httpx.get(server.url).status_code == 200
    assert httpx.get(server.url + "/preview").status_code == 200
    assert httpx.get(server.url + "/v1/models").status_code == 401
    assert server.stop() == 0


@pytest.mark.parametrize("url", ["127.0.0.1:9000/mcp", "ftp://127.0.0.1/mcp", "http://user@host/mcp", "http://a/mcp;script-src",
                                 "http://a/mcp https://b", "http://a/mcp?key=1", "http://[::1]:9000/mcp", "http://", "*", "'self'"])
def test_mcp_servers_that_a_policy_cannot_name_are_refused(request, checkpoint, url):
    run = subprocess.run([request.config.getoption("--lapidary"), "serve", str(checkpoint), "--port", "0", "--mcp-servers", url],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert f"--mcp-servers '{url}'" in run.stderr and "http://127.0.0.1:9000/mcp" in run.stderr
