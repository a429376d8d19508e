"""Models by their names, against a server on this machine that speaks the Hub's API."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hub"))
from fake_hub import FakeHub  # noqa: E402

REPO = "google/gemma-4-E2B-it"
ASK = ("import lapidary, sys; llm = lapidary.LLM(*sys.argv[1:], device='cpu', max_model_len=256{});"
       "print(llm.chat([{{'role': 'user', 'content': 'What is 48 + 17?'}}], lapidary.SamplingParams(temperature=0,"
       "max_tokens=20), use_tqdm=False)[0].outputs[0].text)")


@pytest.fixture
def hub():
    fake = FakeHub()
    yield fake
    fake.close()


@pytest.fixture
def start(hub, package_dir, tmp_path):
    """A Python program on a machine whose cache is empty."""
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("HF_", "LAPIDARY_")) and not key.lower().endswith("_proxy")}
    environment |= {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url,
                    "PYTHONPATH": package_dir}

    def start(*arguments, options="", **variables):
        return subprocess.Popen([sys.executable, "-c", ASK.format(options), *arguments], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment | variables)

    return start


def files_of(package_dir):
    return {path.name: path.read_bytes() for path in (pathlib.Path(package_dir) / "lapidary/models/pebble-e").iterdir()}


def answer(program):
    output, errors = program.communicate(timeout=100)
    assert program.returncode == 0, errors
    return output.strip()


def test_a_name_is_fetched_once_and_runs(hub, start, package_dir):
    hub.add(REPO, files_of(package_dir))
    assert answer(start(REPO)) == "48 + 17 = 65"
    assert answer(start("e2b")) == "48 + 17 = 65"
    assert answer(start(LAPIDARY_MODEL="e2b", HF_HUB_OFFLINE="1")) == "48 + 17 = 65"
    assert len([path for path in hub.paths("storage") if "model.safetensors" in path]) == 1


def test_a_revision_is_fetched_as_that(hub, start, package_dir):
    repo = hub.add(REPO, files_of(package_dir))
    repo.commit(files_of(package_dir) | {"config.json": b"{}"}, "broken")
    program = start(REPO, options=", revision='broken'")
    errors = program.communicate(timeout=100)[1]
    assert program.returncode == 1 and "ValueError" in errors and REPO in errors
    assert answer(start(REPO, options=", revision='main'")) == "48 + 17 = 65"


def test_a_name_that_is_nowhere_is_a_value_error(start):
    errors = start("google/none").communicate(timeout=100)[1]
    assert "ValueError" in errors.splitlines()[-1] and "shows no model google/none" in errors


def test_an_interrupt_ends_a_download(hub, start, package_dir):
    hub.add(REPO, files_of(package_dir))
    asked, released = threading.Event(), threading.Event()

    def wait(*_):
        asked.set()
        released.wait(100)
        return False

    hub.faults["model.safetensors"] = wait
    program = start(REPO)
    try:
        assert asked.wait(100)
        program.send_signal(signal.SIGINT)
        errors = program.communicate(timeout=100)[1]
    finally:
        released.set()
    assert "KeyboardInterrupt" in errors.splitlines()[-1]
