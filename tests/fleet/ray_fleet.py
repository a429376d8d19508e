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
