"""`python -m lapidary.ray` as a process of the tests."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx

FLAGS = ["--replica-host", "127.0.0.1", "--device", "cpu", "--max-model-len", "2048", "--num-cpus", "0.1", "--threads", "1"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Fleet:
    """`python -m lapidary.ray` and its cluster, which goes with it."""

    def __init__(self, package_dir, *words, port=None, command=("-m", "lapidary.ray")):
        self.url = f"http://127.0.0.1:{port or free_port()}"
        where = [] if port else ["--port", self.url.rsplit(":", 1)[1]]
        environment = {**os.environ, "PYTHONPATH": package_dir, "RAY_USAGE_STATS_ENABLED": "0"}
        self.log = []
        self.process = subprocess.Popen([sys.executable, *command, *words, *where], env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        started = threading.Event()

        def read():
            for line in self.process.stdout:
                self.log.append(line)
                if re.search(r"^serving |Deployed app", line):
                    started.set()
            started.set()

        threading.Thread(target=read, daemon=True).start()
        assert started.wait(180) and self.process.poll() is None, "".join(self.log[-50:])

    def replicas(self):
        """The processes of replicas of models."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"ServeReplica:" in (line := entry.read_bytes()) and b"replica-" in line:
                    found.append(int(entry.parent.name))
            except OSError:
                pass
        return found

    def metric(self, name):
        """Of all replicas together, each asked at the port that its process listens on."""
        return sum(metric_of(pid, name) for pid in self.replicas())

    def wait_for_replicas(self, number, seconds=120):
        deadline = time.monotonic() + seconds
        while len(self.replicas()) != number:
            assert time.monotonic() < deadline, f"{len(self.replicas())} replicas, not {number}"
            time.sleep(0.2)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        finally:
            self.process.kill()


def metric_of(pid, name):
    """Of a server in a process, found by the sockets that it listens on."""
    sockets = set()
    for file in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(file))
        except OSError:
            pass
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] != "0A" or f"socket:[{fields[9]}]" not in sockets or not fields[1].startswith("0100007F:"):
            continue
        try:
            text = httpx.get(f"http://127.0.0.1:{int(fields[1][9:], 16)}/metrics", timeout=10).text
        except httpx.HTTPError:
            continue
        for line in text.splitlines():
            if line.startswith(f"lapidary:{name}{{"):
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no server of process {pid} has {name}")
