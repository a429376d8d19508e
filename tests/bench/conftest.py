"""`lapidary bench` as its users call it: against our own server and against servers that misbehave."""

import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server_process import ServerProcess  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--lapidary", required=True, help="the program under test")


@pytest.fixture(scope="session")
def lapidary(request):
    """lapidary(*arguments): runs the program to its end; text in, text out."""
    program = request.config.getoption("--lapidary")

    def run(*arguments, env=None, timeout=120):
        environment = {**os.environ, **(env or {})}
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                              timeout=timeout, env=environment)

    return run


@pytest.fixture(scope="session")
def checkpoint(lapidary, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    done = lapidary("synth", "--preset", "tiny-e", "--out", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="session")
def start_server(request, checkpoint):
    servers = []

    def start(*flags):
        servers.append(ServerProcess(request.config.getoption("--lapidary"), str(checkpoint), *flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server):
    return start_server()


@pytest.fixture
def bench_serve(lapidary, tmp_path):
    """bench_serve(url, *flags): the finished process, with the saved result as .result."""

    def run(url, *flags, **options):
        path = tmp_path / "result.json"
        defaults = {"--random-input-len": 20, "--random-output-len": 10, "--num-prompts": 6, "--seed": 1}
        own = [part for name, value in defaults.items() if name not in flags for part in (name, value)]
        done = lapidary("bench", "serve", "--base-url", url, *own, *flags, "--save-result",
                        "--save-detailed", "--result-filename", path, **options)
        done.result = json.loads(path.read_text()) if path.exists() else None
        return done

    return run


class StubServer(http.server.ThreadingHTTPServer):
    """Answers POSTs by `answer(handler, number of the request, body)`; counts what is open."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, answer, models=None):
        super().__init__(("127.0.0.1", 0), StubHandler)
        self.answer = answer
        self.models = models or {"data": [{"id": "stub", "meta": {"n_vocab": 1000}}]}
        self.lock = threading.Lock()
        self.num_requests = 0
        self.num_open = 0
        self.max_open = 0
        self.bodies = []
        self.headers = []
        self.arrivals = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that leaves is part of the tests


class StubHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send_json(self, status, body, **headers):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def begin_events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_event(self, data):
        text = data if isinstance(data, str) else json.dumps(data)
        content = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def end_events(self):
        self.leave()  # before the client can know
        self.send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def leave(self):
        with self.server.lock:
            self.server.num_open -= self.is_open
            self.is_open = False

    def do_GET(self):
        self.send_json(200, self.server.models)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            number = server.num_requests
            server.num_requests += 1
            server.num_open += 1
            self.is_open = True
            server.max_open = max(server.max_open, server.num_open)
            server.bodies.append(body)
            server.headers.append(dict(self.headers))
            server.arrivals.append(time.monotonic())
        try:
            server.answer(self, number, body)
        finally:
            self.leave()


@pytest.fixture
def stub():
    """stub(answer): a server that lives as long as the test."""
    servers = []

    def start(answer, **options):
        servers.append(StubServer(answer, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def tools():
    return pathlib.Path(__file__).resolve().parents[2] / "tools"
