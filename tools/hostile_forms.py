"""What hostile forms of answers cost others: how long a short question waits beside them, how long SIGTERM takes, and
what memory they leave.

    python3 tools/hostile_forms.py build/lapidary models/pebble-e [pattern] [multiples] [slow] [sigterm] [memory]
"""

import argparse
import json
import pathlib
import signal
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from server_process import ServerProcess  # noqa: E402


def question(max_tokens=8, **fields):
    return {"messages": [{"role": "user", "content": "What is the sun?"}], "max_tokens": max_tokens, **fields}


def schema(form, max_tokens=64):
    return question(max_tokens, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": form}})


def long_pattern(number):
    """40 kB of [aA]*[bB]*..."""
    parts = (f"[{chr(97 + part % 26)}{chr(65 + part % 26)}]*" for part in range(8000 - number))
    return question(64, structured_outputs={"regex": "".join(parts)})


def multiples(number, num_fields=20, largest=999_983):
    names = [f"f{field}" for field in range(num_fields)]
    fields = {name: {"type": "integer", "multipleOf": largest - field - num_fields * number}
              for field, name in enumerate(names)}
    return schema({"type": "object", "properties": fields, "required": names}, 200)


def slow_schema(number):
    """Takes seconds to compile: which of seven patterns a key fits."""
    patterns = {f"^.*{chr(97 + key)}.{{{8 + number % 3}}}{chr(98 + key)}.*$": {"type": "integer"} for key in range(7)}
    return schema({"type": "object", "patternProperties": patterns})


HOSTILE = {"pattern": long_pattern, "multiples": multiples, "slow": slow_schema}


def post(server, body):
    """Status, text, seconds."""
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    begin = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode(), time.monotonic() - begin
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), time.monotonic() - begin
    except OSError as error:
        return 0, repr(error), time.monotonic() - begin


def memory_of(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))


def measure_beside(start, name, count):
    server = start()
    post(server, question(response_format={"type": "json_object"}))
    alone = [post(server, question())[2] for _ in range(10)]
    answers = [None] * count

    def attack(number):
        answers[number] = post(server, HOSTILE[name](number))

    threads = [threading.Thread(target=attack, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    beside = []
    while any(thread.is_alive() for thread in threads):
        beside.append(post(server, question())[2])
        time.sleep(0.05)
    server.stop()
    print(f"{name} x {count}: a short question takes {statistics.median(alone):.3f} s alone; beside them "
          f"{statistics.median(beside or [0]):.3f} in the median, {max(beside or [0]):.3f} at worst, of {len(beside)}")
    for status, text, seconds in answers[:2]:
        print(f"    {status} after {seconds:.1f} s: {text[:200]}")


def measure_sigterm(start):
    server = start("--shutdown-timeout", "3")
    threads = [threading.Thread(target=post, args=[server, HOSTILE[name](number)])
               for number in range(3) for name in ("pattern", "slow")]
    for thread in threads:
        thread.start()
    time.sleep(2)
    begin = time.monotonic()
    code = server.stop(signal.SIGTERM)
    print(f"SIGTERM with --shutdown-timeout 3: {time.monotonic() - begin:.1f} s, exit code {code}")


def measure_memory(start):
    server = start()
    post(server, question())
    before = memory_of(server)
    for number in range(36):
        post(server, multiples(number, num_fields=6, largest=99_983))
    print(f"36 schemas: {before} MB resident before, {memory_of(server)} MB after")
    server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("what", nargs="*", default=[*HOSTILE, "sigterm", "memory"])
    parser.add_argument("--count", type=int, default=4, help="hostile requests at once")
    options = parser.parse_args()

    def start(*flags):
        return ServerProcess(options.program, options.model, "--device", "cpu", "--host", "127.0.0.1", *flags)

    for what in options.what:
        if what == "sigterm":
            measure_sigterm(start)
        elif what == "memory":
            measure_memory(start)
        else:
            measure_beside(start, what, options.count)


if __name__ == "__main__":
    main()
