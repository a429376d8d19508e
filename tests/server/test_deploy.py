"""The files in deploy/ fit the program: flags, variables, timeouts, paths."""

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNIT = (DEPLOY / "lapidary.service").read_text()


@pytest.fixture(scope="module")
def help_text(request):
    program = request.config.getoption("--lapidary")
    return subprocess.run([program, "serve", "--help"], check=True, capture_output=True, text=True).stdout


def test_systemd_accepts_the_unit(request, tmp_path):
    """With the program's real path: verify looks for it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = tmp_path / "lapidary.service"
    program = Path(request.config.getoption("--lapidary")).resolve()
    unit.write_text(UNIT.replace("/usr/local/bin/lapidary", f'"{program}"'))  # a path may have blanks
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "lapidary.service" in line]
    assert done.returncode == 0 and not complaints, done.stderr


def test_the_unit_says_what_the_program_understands(help_text):
    (command,) = re.findall(r"^ExecStart=\S+ (.*)$", UNIT, re.MULTILINE)
    assert command.split()[0] == "serve"
    for name in re.findall(r"LAPIDARY_\w+", UNIT + (DEPLOY / "README.md").read_text()):
        assert name == "LAPIDARY_MODEL" or name in help_text, name
    for flag in re.findall(r"`(--[a-z-]+)", (DEPLOY / "README.md").read_text()):
        assert flag in help_text, flag


def test_systemd_waits_longer_than_the_server_drains(help_text):
    patience = float(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[1])
    drain = float(re.search(r"--shutdown-timeout .*\]=([\d.]+) ", help_text)[1])
    assert patience > drain + 10


def test_prometheus_scrapes_what_is_served(server):
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    path = re.search(r"metrics_path: (\S+)", text)[1]
    assert httpx.get(server.url + path).status_code == 200
    assert re.search(r"targets: \[\"127\.0\.0\.1:8000\"\]", text)
