"""Several servers behind something that routes to them. What routes comes from PyPI (tests/requirements-clients.txt)
and is not there in every run: a test without it says so."""

import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))


def pytest_addoption(parser):
    parser.addoption("--lapidary", required=True, help="the program under test")
    parser.addoption("--build-dir", help="where the Python package was built")


@pytest.fixture(scope="session")
def program(request):
    return request.config.getoption("--lapidary")


@pytest.fixture(scope="session")
def package_dir(request, tmp_path_factory):
    """The Python package as it is installed."""
    build = request.config.getoption("--build-dir")
    if not build:
        pytest.skip("--build-dir is not given")
    directory = tmp_path_factory.mktemp("package")
    subprocess.run(["cmake", "--install", build, "--component", "python", "--prefix", directory], check=True,
                   stdout=subprocess.DEVNULL)
    return str(directory)


@pytest.fixture(scope="session")
def seconds():
    """How long clients ask while servers are killed."""
    return float(os.environ.get("LAPIDARY_FLEET_SECONDS", "20"))
