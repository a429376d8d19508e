"""Attacks on `lapidary serve` and on the commands: requests and files that no honest client has.

Each case asserts that nothing crashes, nothing waits for ever and no memory stays with what has gone. Seeds are
fixed. LAPIDARY_HOSTILE_MINUTES=5 repeats every case with new seeds for that long.
"""

import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "server"), str(TESTS)]
from seeing_checkpoint import make_seeing_checkpoint  # noqa: E402
from target import Target  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--lapidary", required=True, help="the program under test")


@pytest.fixture(scope="session")
def program(request):
    return request.config.getoption("--lapidary")


@pytest.fixture(scope="session")
def checkpoint(program, tmp_path_factory):
    """With random weights."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    subprocess.run([program, "synth", "--preset", "tiny-e", "--out", path], check=True, stderr=subprocess.DEVNULL)
    return path


@pytest.fixture(scope="session")
def seeing_checkpoint(program, tmp_path_factory):
    """The same that takes pictures and sounds."""
    return make_seeing_checkpoint(program, tmp_path_factory.mktemp("seeing"))


@pytest.fixture
def start(program, checkpoint):
    """start(*flags): a server that must still be there, and end well, when the test is over."""
    targets = []

    def start_server(*flags, model=checkpoint, program=program):
        targets.append(Target(program, model, "--threads", "1", *flags))
        return targets[-1]

    yield start_server
    for target in targets:
        assert target.stop() == 0, "".join(target.log[-20:])
