"""`lapidary` and a Hub on this machine."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from fake_hub import FakeHub  # noqa: E402

MODELS = pathlib.Path(__file__).resolve().parent.parent.parent / "models"


def pytest_addoption(parser):
    parser.addoption("--lapidary", required=True, help="the program under test")


@pytest.fixture
def hub():
    fake = FakeHub()
    yield fake
    fake.close()


@pytest.fixture(scope="session")
def pebble():
    """The files of the bundled model: one that runs."""
    return {path.name: path.read_bytes() for path in (MODELS / "pebble-e").iterdir()}


@pytest.fixture
def large(pebble):
    """A model whose weights are four pieces of a download; nobody runs it."""
    weights = bytearray(os.urandom(1 << 20) * 100)
    for piece in range(100):  # no two parts alike
        weights[piece << 20] = piece
    return {"config.json": pebble["config.json"], "model.safetensors": bytes(weights)}


class Machine:
    """A user's machine with its own cache."""

    def __init__(self, program, home, hub):
        self.program = program
        self.home = home
        self.cache = home / "hf" / "hub"
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("HF_", "HUGGING")) and not key.lower().endswith("_proxy")}
        self.environment |= {"HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": hub.url,
                             "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
                             "LAPIDARY_MODELS_DIR": str(MODELS)}

    def run(self, *arguments, check=False, **variables):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, timeout=100,
                              env=self.environment | variables, stdin=subprocess.DEVNULL)
        assert done.returncode in (0, 1, 2), done
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def refusal(self, *arguments, **variables):
        """The one sentence of a command that must fail."""
        done = self.run(*arguments, **variables)
        assert done.returncode == 1 and done.stdout == "", done
        last = done.stderr.splitlines()[-1]
        assert last.startswith("lapidary: "), done.stderr
        return last

    def start(self, *arguments, **variables):
        return subprocess.Popen([self.program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment | variables)

    def python(self, code):
        """What a program of huggingface_hub prints, as JSON."""
        done = subprocess.run([sys.executable, "-c", "import json, huggingface_hub as hub\n" + code],
                              capture_output=True, text=True, timeout=100, env=self.environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def folder(self, repo):
        return self.cache / ("models--" + repo.replace("/", "--"))

    def blobs(self, repo):
        folder = self.folder(repo) / "blobs"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def machine(request, tmp_path, hub):
    return Machine(str(pathlib.Path(request.config.getoption("--lapidary")).resolve()), tmp_path, hub)
