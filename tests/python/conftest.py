"""The Python package as it is installed: modules, extension and bundled model of the build, in a folder of their own."""

import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

SUM = [{"role": "user", "content": "What is 48 + 17?"}]


def pytest_addoption(parser):
    parser.addoption("--lapidary", required=True, help="the program of the same build")
    parser.addoption("--build-dir", required=True, help="where the extension was built")


def pytest_configure(config):
    # Before any test file imports lapidary.
    import tempfile
    config.package = tempfile.TemporaryDirectory(prefix="lapidary-python-")
    subprocess.run(["cmake", "--install", config.getoption("--build-dir"), "--component", "python",
                    "--prefix", config.package.name], check=True, stdout=subprocess.DEVNULL)
    sys.path.insert(0, config.package.name)


def pytest_unconfigure(config):
    config.package.cleanup()


@pytest.fixture(scope="session")
def package_dir(request):
    return request.config.package.name


@pytest.fixture(scope="session")
def program(request):
    return request.config.getoption("--lapidary")


@pytest.fixture(scope="session")
def llm():
    import lapidary
    with lapidary.LLM(device="cpu", max_model_len=1024) as llm:
        yield llm


@pytest.fixture
def question():
    return SUM
