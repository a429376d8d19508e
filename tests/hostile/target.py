"""A server under attack, and what must be true of it afterwards."""

import asyncio
import os
import random
import re
import time
from pathlib import Path

from raw_client import ask, close, connect, text_of
from server_process import ServerProcess

MEGABYTE = 2**20
# More rounds with other seeds, for as long as this; without it each case is played once.
MINUTES = float(os.environ.get("LAPIDARY_HOSTILE_MINUTES", "0"))
SANITIZED = os.environ.get("LAPIDARY_SANITIZED", "") != ""
# A request that is not answered after this is one that hangs: the server's own limits are far below.
ANSWER_SECONDS = 600 if SANITIZED else 120
QUESTION = {"prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def rounds(name):
    """Generators of random numbers for the rounds of a case."""
    began = time.monotonic()
    number = 0
    while number == 0 or time.monotonic() - began < 60 * MINUTES:
        yield random.Random(f"{name} {number}")
        number += 1


# That a server starts when they are needed for the first time: for masks that take long, for forms that do.
LATE_THREADS = 4


class Target(ServerProcess):
    """Knows its answer to a short question, and what it holds when idle, from before the attack."""

    def __init__(self, program, model, *flags):
        super().__init__(program, str(model), *flags)
        self.answer = self.ask_question()
        self.wait_until_idle()
        self.num_threads = self.status("Threads")
        self.num_files = self.count_files()

    def status(self, name):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1])

    def resident(self):
        return self.status("VmRSS") * 1024

    def count_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def ask_question(self):
        status, answer = asyncio.run(self.ask(QUESTION))
        assert status == 200, answer
        return text_of(answer)

    async def ask(self, body, path="/v1/completions"):
        """(status, answer), complete to the last byte."""
        return await asyncio.wait_for(ask(self, body, path), ANSWER_SECONDS)

    async def send(self, content):
        """Whatever comes back for these bytes until the server closes."""
        reader, writer = await connect(self)
        try:
            writer.write(content)
            await writer.drain()
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), ANSWER_SECONDS)
        except ConnectionError:
            return b""
        finally:
            await close(writer)

    def check(self, expected_errors=()):
        """It lives, answers as ever, and nothing is left of those who came."""
        assert self.process.poll() is None, f"ended with {self.process.returncode}: {''.join(self.log[-20:])}"
        assert self.ask_question() == self.answer
        self.wait_until_idle(60)
        deadline = time.monotonic() + 20  # the kernel's and the lingering connections' time to close
        while self.count_files() > self.num_files and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.count_files() <= self.num_files, "connections stay open"
        assert self.status("Threads") <= self.num_threads + LATE_THREADS
        bad = [line for line in self.log if re.search(r" E |CHECK failed|Sanitizer|runtime error|terminate", line)
               and not any(expected in line for expected in expected_errors)]
        assert not bad, bad[:3]


async def in_groups(jobs, size=8):
    """Runs so many at a time; what they return."""
    jobs = list(jobs)
    results = []
    for begin in range(0, len(jobs), size):
        results += await asyncio.gather(*jobs[begin:begin + size])
    return results


def check_refusal(answer):
    """An error has a sentence and a type, and no more; one of Ollama's API the sentence alone."""
    error = answer["error"]
    if isinstance(error, str):
        assert error, answer
        return
    assert error["message"] and error["type"], answer
