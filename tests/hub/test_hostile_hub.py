"""A Hub, or what is between us and it, that means harm. Bounded by what is sent, not by time."""

import json
import os
import subprocess
import threading

import fake_hub
import pytest

from test_pull import REPO, weights_of

SHA1 = "a" * 40


def test_wrong_bytes_never_become_a_model(hub, machine, pebble):
    hub.add(REPO, pebble)
    for path in ("config.json", "model.safetensors"):
        def other(handler, data, begin, end, path=path):
            bytes_sent = bytearray(data)
            bytes_sent[len(data) // 2] ^= 1
            handler.answer(200, bytes(bytes_sent))
            return True

        hub.faults = {path: other}
        hub.forget_requests()
        message = machine.refusal("pull", REPO, "--no-spec")
        assert f"the file {path} of {REPO} has not the sum that is listed for it, twice" in message
        assert not list(machine.folder(REPO).glob("snapshots/*/" + path))
        assert not [name for name in machine.blobs(REPO) if "incomplete" in name]
        assert len([asked for asked in hub.paths() if asked.endswith("/" + path)]) == 2
    hub.faults = {}
    assert weights_of(machine.run("pull", REPO, "--no-spec", check=True).stdout) == pebble["model.safetensors"]


def test_a_sum_that_was_wrong_once_is_right_the_second_time(hub, machine, pebble):
    hub.add(REPO, pebble)
    left = [1]

    def once(handler, data, begin, end):
        if not left:
            return False
        left.pop()
        handler.answer(200, bytes(len(data)))
        return True

    hub.faults["model.safetensors"] = once
    assert weights_of(machine.run("pull", REPO, "--no-spec", check=True).stdout) == pebble["model.safetensors"]


@pytest.mark.parametrize("path", ["../../../escaped", "/tmp/escaped", "a/../../../../escaped", "a\\b", "a\nb", "a//b",
                                  "..", "x" * 300, "nul\0nul"])
def test_a_path_cannot_leave_the_cache(hub, machine, pebble, path):
    hub.add(REPO, pebble).extra_entries = [{"type": "file", "path": path, "size": 1, "oid": SHA1}]
    assert "is not a place inside a repository" in machine.refusal("pull", REPO, "--no-spec")
    assert not list(machine.home.rglob("*escaped*"))


@pytest.mark.parametrize("entry", [
    {"type": "file", "path": "model.safetensors/x", "size": 1, "oid": SHA1},
    {"type": "file", "path": "config.json", "size": 1, "oid": SHA1},
    {"type": "file", "path": "x", "size": 1 << 62, "oid": SHA1},
    {"type": "file", "path": "x", "size": -1, "oid": SHA1},
    {"type": "file", "path": "x", "size": 1, "oid": "../../x"},
    {"type": "file", "path": "x", "size": 1, "oid": SHA1, "lfs": {"oid": "../" * 20 + "xxxx", "size": 1}},
    {"type": "file", "path": 5, "size": 1, "oid": SHA1},
    [], "x", None, 5])
def test_an_impossible_listing_is_refused(hub, machine, pebble, entry):
    hub.add(REPO, pebble).extra_entries = [entry]
    assert "lists of google/gemma-4-E2B-it" in machine.refusal("pull", REPO, "--no-spec")


def test_sizes_beyond_the_disk_are_refused_before_a_byte_is_fetched(hub, machine, pebble):
    repo = hub.add(REPO, {"config.json": pebble["config.json"], "model.safetensors.index.json": b"{}"})
    repo.extra_entries = [{"type": "file", "path": f"model-{shard:05}-of-00400.safetensors", "size": 135, "oid": SHA1,
                           "lfs": {"oid": f"{shard:064x}", "size": 1 << 42}} for shard in range(1, 401)]
    message = machine.refusal("pull", REPO, "--no-spec")
    assert "GB on the disk of" in message and "lapidary rm" in message
    assert not any("/resolve/" in path for path in hub.paths())


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", b'{"sha": "main"}', b'{"sha": "../../../../x"}', b"[" * 100_000,
                                    json.dumps({"sha": SHA1 + "0"}).encode()])
def test_a_commit_that_is_none_is_refused(hub, machine, answer, monkeypatch):
    monkeypatch.setattr(fake_hub._HubHandler, "api", lambda handler, *_: handler.answer(200, answer))
    assert "says about google/gemma-4-E2B-it" in machine.refusal("pull", REPO, "--no-spec")


def test_an_endless_answer_is_cut_off(hub, machine, monkeypatch, pebble):
    sent = []

    def endless(handler, *_):
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        total = 0
        try:
            while total < 1 << 30:
                total += handler.wfile.write(b" " * (1 << 20))
        except OSError:
            pass
        sent.append(total)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(fake_hub._HubHandler, "api", endless)
        assert "more than it was asked for" in machine.refusal("pull", REPO, "--no-spec")
    hub.add(REPO, pebble)
    hub.faults["config.json"] = endless
    hub.faults["model.safetensors"] = endless
    machine.refusal("pull", REPO, "--no-spec")
    assert sent and max(sent) < 1 << 28
    assert not list(machine.folder(REPO).glob("snapshots/*/config.json"))


def test_endless_pages_are_cut_off(hub, machine, monkeypatch):
    right = fake_hub._HubHandler.api

    def pages(handler, name, kind, *rest):
        if kind == "revision":
            return right(handler, name, kind, *rest)
        return handler.answer(200, b"[]", Link=f'<{handler.server.fake.url}{handler.path}>; rel="next"')

    hub.add(REPO, {})
    monkeypatch.setattr(fake_hub._HubHandler, "api", pages)
    assert "more than 100 pages" in machine.refusal("pull", REPO, "--no-spec")
    assert len(hub.paths()) == 101


def test_a_next_page_on_another_host_is_not_asked_for(hub, machine, monkeypatch):
    right = fake_hub._HubHandler.api
    hub.add(REPO, {})
    monkeypatch.setattr(fake_hub._HubHandler, "api", lambda handler, name, kind, *rest: right(
        handler, name, kind, *rest) if kind == "revision" else handler.answer(
            200, b"[]", Link=f'<{hub.storage_url}/steal>; rel="next"'))
    assert "its next page is on another host" in machine.refusal("pull", REPO, "--no-spec", HF_TOKEN="hf_right")
    assert hub.paths("storage") == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x",
                                    "http://user:password@127.0.0.1/x"])
def test_redirects_lead_to_http_hosts_alone(hub, machine, pebble, target):
    hub.add(REPO, pebble)
    hub.redirect_to = target
    message = machine.refusal("pull", REPO, "--no-spec")
    assert "leads to an address" in message
    assert not list(machine.folder(REPO).glob("snapshots/*/model.safetensors"))


def test_https_does_not_lead_to_http_and_certificates_are_checked(machine, pebble, tmp_path):
    key, certificate, both = (tmp_path / name for name in ("hub.key", "hub.crt", "hub.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hub",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True,
                   capture_output=True)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    secure = fake_hub.FakeHub(both)
    try:
        secure.add(REPO, pebble)
        trusted = {"HF_ENDPOINT": secure.url, "SSL_CERT_FILE": str(certificate), "HF_TOKEN": "hf_right"}
        message = machine.refusal("pull", REPO, "--no-spec", **trusted)
        assert "leads to an address that is not https (http://localhost)" in message
        assert secure.paths("storage") == []
        assert list(machine.folder(REPO).glob("snapshots/*/config.json")), "the Hub itself was trusted"
        secure.redirect_to = secure.url.replace("https", "http")
        assert "is not https (http://127.0.0.1)" in machine.refusal("pull", REPO, "--no-spec", **trusted)
        secure.forget_requests()
        message = machine.refusal("pull", "e4b", "--no-spec", HF_ENDPOINT=secure.url, HF_TOKEN="hf_right")
        assert "127.0.0.1 cannot be reached for google/gemma-4-E4B-it: SSL" in message
        assert secure.paths() == []
    finally:
        secure.close()


def test_redirects_without_end_are_given_up(hub, machine, pebble):
    hub.add(REPO, pebble)
    hub.redirect_to = f"{hub.url}/{REPO}/resolve/main/model.safetensors?"
    assert "more than 10 redirects" in machine.refusal("pull", REPO, "--no-spec")
    assert len([path for path in hub.paths() if "model.safetensors" in path]) <= 11 * 5


def test_a_file_shorter_than_listed_and_another_range_than_asked_for_are_refused(hub, machine, large):
    hub.add(REPO, large)

    def shorter(handler, data, begin, end):
        handler.answer(416, Content_Range="bytes */5")
        return True

    hub.faults["model.safetensors"] = shorter
    assert "has less of file model.safetensors" in machine.refusal("pull", REPO, "--no-spec")

    def another(handler, data, begin, end):
        handler.answer(206, data[:end - begin], Content_Range=f"bytes 0-{end - begin - 1}/{len(data)}")
        return begin > 0

    def other_part(handler, data, begin, end):
        return another(handler, data, begin, end) if begin > 0 else False

    hub.faults["model.safetensors"] = other_part
    assert "sends another part of the file" in machine.refusal("pull", REPO, "--no-spec")


def test_silence_is_given_up(hub, machine, pebble):
    """So many attempts, each ended by HF_HUB_DOWNLOAD_TIMEOUT."""
    over = threading.Event()
    begun = []

    def silent(handler, data, begin, end):
        begun.append(begin)
        over.wait(60)
        return True

    hub.add(REPO, pebble)
    hub.faults["model.safetensors"] = silent
    assert "Timeout was reached" in machine.refusal("pull", REPO, "--no-spec", HF_HUB_DOWNLOAD_TIMEOUT="1")
    over.set()
    assert len(begun) == 5


def test_what_the_hub_says_cannot_steer_a_terminal(hub, machine, monkeypatch):
    monkeypatch.setattr(fake_hub._HubHandler, "api", lambda handler, *_: handler.refuse(400, "", "\x1b[2Jgone"))
    message = machine.refusal("pull", REPO, "--no-spec")
    assert "answers 400" in message and "\x1b" not in message and os.linesep not in message
