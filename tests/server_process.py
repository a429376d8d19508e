"""A running `lapidary serve`, for the suites that need one."""

import re
import signal
import subprocess
import threading


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

    def stop(self, how=signal.SIGTERM):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(60)
        self.reader.join(10)
        return code
