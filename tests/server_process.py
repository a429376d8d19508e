"""A running `lapidary serve`, for the suites that need one."""

import re
import signal
import subprocess
import threading
import time

import httpx


class ServerProcess:
    """Ready once it is made. Its log is read as it is written, or the pipe would fill up."""

    def __init__(self, program, model, *flags):
        if "--max-model-len" not in flags:
            flags = ("--max-model-len", "1024", *flags)
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", *flags],
                                        stderr=subprocess.PIPE, text=True)
        self.log = []
        self.url = None
        started = threading.Event()

        def read_log():
            for line in self.process.stderr:
                self.log.append(line)
                if match := re.search(r"serving .* on (https?://\S+)", line):
                    self.url = match[1]
                    started.set()
            started.set()

        self.reader = threading.Thread(target=read_log, daemon=True)
        self.reader.start()
        assert started.wait(60) and self.url, "".join(self.log)

    def metric(self, name, **labels):
        text = httpx.get(self.url + "/metrics").text
        total = None
        for line in text.splitlines():
            if line.startswith(f"lapidary:{name}{{") and all(
                    f'{key}="{value}"' in line for key, value in labels.items()):
                total = (total or 0) + float(line.rsplit(" ", 1)[1])
        return total

    def wait_until_idle(self, seconds=10):
        deadline = time.monotonic() + seconds
        busy = None
        while time.monotonic() < deadline:
            busy = [self.metric(name) for name in
                    ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]
            if not any(busy):
                return
            time.sleep(0.02)
        raise AssertionError(f"still busy: running, waiting, KV usage = {busy}")

    def stop(self, how=signal.SIGTERM):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(60)
        self.reader.join(10)
        if not self.reader.is_alive():
            self.process.stderr.close()
        return code
