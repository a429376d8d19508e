"""Images by http URLs: only from hosts that were allowed, at addresses that were checked."""

import http.server
import pathlib
import threading
import time

import openai
import pytest
from seeing_checkpoint import make_seeing_checkpoint

PICTURE = (pathlib.Path(__file__).resolve().parent.parent / "data" / "media" / "turned.jpg").read_bytes()


class Files(http.server.BaseHTTPRequestHandler):
    """Answers by path; remembers what was asked for."""

    asked = []
    may_answer = threading.Event()  # to those who want a slow file

    def do_GET(self):
        self.asked.append(self.path)
        port = self.server.server_address[1]
        redirects = {"/moved.jpg": "/picture.jpg", "/elsewhere.jpg": f"http://localhost:{port}/picture.jpg",
                     "/loop.jpg": "/loop.jpg", "/file.jpg": "file:///etc/hostname"}
        if self.path in redirects:
            self.send_response(302)
            self.send_header("Location", redirects[self.path])
            self.end_headers()
            return
        if self.path == "/endless.jpg":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                return
        if self.path == "/slow.jpg":
            self.may_answer.wait(60)
        found = {"/picture.jpg": PICTURE, "/text.jpg": b"no picture"}.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def files():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture(scope="module")
def seeing(start, files, request, tmp_path_factory):
    """A server that may fetch from 127.0.0.1, named as an address, and from localhost, which is a name."""
    checkpoint = make_seeing_checkpoint(request.config.getoption("--lapidary"), tmp_path_factory.mktemp("seeing"))
    return start("--allowed-media-domains", f"127.0.0.1:{files},localhost:{files + 1}", model=checkpoint)


def ask(server, url):
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}, {"type": "text", "text": "Which one?"}]
    return server.client().chat.completions.create(model="seeing", temperature=0, max_tokens=4,
                                                   messages=[{"role": "user", "content": parts}])


def test_a_picture_is_fetched_and_redirects_are_followed(seeing, files):
    fetched = ask(seeing, f"http://127.0.0.1:{files}/picture.jpg")
    moved = ask(seeing, f"http://127.0.0.1:{files}/moved.jpg")
    assert 35 <= fetched.usage.prompt_tokens
    assert moved.usage.prompt_tokens == fetched.usage.prompt_tokens
    assert moved.choices[0].message.content == fetched.choices[0].message.content


@pytest.mark.parametrize("path, problem", [
    ("missing.jpg", "its host answers 404"),
    ("text.jpg", "neither JPEG nor PNG nor WebP"),
    ("loop.jpg", "more than 4 redirects"),
    ("endless.jpg", "it has more than"),
    ("elsewhere.jpg", "nothing is fetched from 'localhost'"),
    ("file.jpg", "must be http"),
])
def test_what_cannot_be_fetched_is_refused_with_a_sentence(seeing, files, path, problem):
    with pytest.raises(openai.BadRequestError, match=problem):
        ask(seeing, f"http://127.0.0.1:{files}/{path}")


@pytest.mark.parametrize("url, problem", [
    ("http://localhost:{files}/picture.jpg", "nothing is fetched from 'localhost'"),
    ("http://127.0.0.1/picture.jpg", "nothing is fetched from '127.0.0.1'"),
    ("http://user:secret@127.0.0.1:{files}/picture.jpg", "must be http"),
    ("http://localhost:{after}/picture.jpg", "private address"),
    ("ftp://127.0.0.1:{files}/picture.jpg", "must be http"),
    ("nonsense", "must be http"),
])
def test_other_hosts_are_not_asked(seeing, files, url, problem):
    Files.asked.clear()
    with pytest.raises(openai.BadRequestError, match=problem):
        ask(seeing, url.format(files=files, after=files + 1))
    assert not Files.asked


def test_without_hosts_nothing_is_fetched(start, files, request, tmp_path_factory):
    checkpoint = make_seeing_checkpoint(request.config.getoption("--lapidary"), tmp_path_factory.mktemp("seeing"))
    Files.asked.clear()
    with pytest.raises(openai.BadRequestError, match="--allowed-media-domains"):
        ask(start(model=checkpoint), f"http://127.0.0.1:{files}/picture.jpg")
    assert not Files.asked


def test_a_host_that_is_slow_holds_up_no_other_request(seeing, files):
    Files.may_answer.clear()
    slow = [threading.Thread(target=seeing.post, args=["/v1/chat/completions"], kwargs={"json": {"messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {
            "url": f"http://127.0.0.1:{files}/slow.jpg"}}]}]}}) for _ in range(4)]
    for thread in slow:
        thread.start()
    while Files.asked.count("/slow.jpg") < len(slow):
        time.sleep(0.01)
    answer = seeing.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 1})
    num_waiting = sum(thread.is_alive() for thread in slow)
    Files.may_answer.set()
    for thread in slow:
        thread.join()
    assert answer.status_code == 200
    assert num_waiting == len(slow)
