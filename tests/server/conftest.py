"""Starts `lapidary serve` on a tiny random checkpoint; the tests talk to it as any client would."""

import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import httpx
import openai
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from page_visitor import Visitor  # noqa: E402
from server_process import ServerProcess  # noqa: E402


# Under a sanitizer (./lapidary test --sanitize) everything takes many times as long.
CLIENT_TIMEOUT = 600 if os.environ.get("LAPIDARY_SANITIZED") else 60


def pytest_addoption(parser):
    parser.addoption("--lapidary", required=True, help="the program under test")


class Server(ServerProcess):
    """With clients."""

    def client(self, **options):
        options = {"api_key": "none", "max_retries": 0, "timeout": CLIENT_TIMEOUT, **options}
        return openai.OpenAI(base_url=self.url + "/v1", **options)

    def async_client(self, **options):
        options = {"api_key": "none", "max_retries": 0, "timeout": CLIENT_TIMEOUT, **options}
        return openai.AsyncOpenAI(base_url=self.url + "/v1", **options)

    def post(self, path, **options):
        return httpx.post(self.url + path, timeout=CLIENT_TIMEOUT, **options)


@pytest.fixture(scope="session")
def synthesize(request, tmp_path_factory):
    """synthesize(preset, name): a checkpoint with random weights, in a folder of that name."""
    def make(preset, name):
        path = tmp_path_factory.mktemp("models") / name
        subprocess.run([request.config.getoption("--lapidary"), "synth", "--preset", preset, "--out", path],
                       check=True, stderr=subprocess.DEVNULL)
        return path
    return make


@pytest.fixture(scope="session")
def checkpoint(synthesize):
    return synthesize("tiny-e", "tiny")


@pytest.fixture(scope="session")
def start(request, checkpoint):
    """start(*flags): another server, of `model` or the tiny checkpoint, stopped when the session ends."""
    servers = []

    def start_server(*flags, model=checkpoint):
        servers.append(Server(request.config.getoption("--lapidary"), str(model), *flags))
        return servers[-1]

    yield start_server
    codes = [server.stop() for server in servers]
    assert not any(codes), f"exit codes {codes}; the last server's log ends: {''.join(servers[-1].log[-30:])}"


@pytest.fixture(scope="session")
def server(start):
    return start()


@pytest.fixture(scope="session")
def endless_server(request, checkpoint, tmp_path_factory):
    """A server whose answers go on until they are stopped: no token ends them, and the context is four times as long."""
    path = tmp_path_factory.mktemp("models") / "endless"
    shutil.copytree(checkpoint, path)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((path / name).read_text())
        config["eos_token_id"] = []
        (path / name).write_text(json.dumps(config))
    server = Server(request.config.getoption("--lapidary"), str(path), "--max-model-len", "4096")
    yield server
    server.stop()


CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BROWSER = 77  # ctest's sign that a test was skipped, see tests/CMakeLists.txt


def is_snap(path):
    """Ubuntu's Chromium: it sees neither our /tmp nor our profile, so it cannot be driven. Or a script that asks for it."""
    path = pathlib.Path(path).resolve()
    return path.name == "snap" or b"/snap/bin" in path.read_bytes()[:4096]


def find_chromium():
    for path in filter(None, map(shutil.which, CHROMIUMS)):
        if not is_snap(path) and subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0:
            return path
    return None


@pytest.fixture(scope="session")
def browser(request):
    path = find_chromium()
    if path is None:
        reason = f"there is none of {', '.join(CHROMIUMS)} (a snap does not do): the chat page is not tested"
        if platform.freedesktop_os_release().get("ID") == "debian":
            pytest.fail(reason + "; apt-get install chromium")
        request.session.exitstatus_without_browser = NO_BROWSER
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        browser.chromium_path = path
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    visitors = []

    def open_page(server, **options):
        visitors.append(Visitor(browser, server.url + "/", **options))
        return visitors[-1]

    yield open_page
    try:
        for visitor in visitors:
            visitor.check()
    finally:
        for visitor in visitors:
            visitor.context.close()


@pytest.fixture
def visitor(visit, server):
    return visit(server)


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.OK and hasattr(session, "exitstatus_without_browser"):
        session.exitstatus = session.exitstatus_without_browser


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def hello():
    return HELLO
