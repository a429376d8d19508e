"""lapidary.Server: `lapidary serve` in this process."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import lapidary
import pytest

OPTIONS = {"device": "cpu", "max_model_len": 512}
ENDLESS = {"prompt": "Once", "temperature": 0, "ignore_eos": True, "max_tokens": 400, "stream": True,
           "return_token_ids": True}


@pytest.fixture(scope="module")
def server():
    with lapidary.Server(**OPTIONS, served_model_name=["toy", "other"], max_num_seqs=8) as server:
        yield server


def ask(server, question):
    body = {"messages": question, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    return reply.json()["choices"][0]["message"]["content"]


def test_it_answers_with_the_bundled_model(server, question):
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert server.model_names == ["toy", "other"]
    assert ask(server, question) == "48 + 17 = 65"


def test_its_numbers_are_those_of_its_metrics(server, question):
    ask(server, question)
    stats = server.stats()
    assert stats["max_model_len"] == 512 and stats["max_num_seqs"] == 8
    assert 0 <= stats["kv_cache_usage"] <= 1 and stats["num_waiting"] == 0
    text = httpx.get(f"{server.url}/metrics").text
    [config] = [line for line in text.splitlines() if line.startswith("lapidary:cache_config_info{")]
    assert f'block_size="{stats["block_size"]}"' in config and f'num_gpu_blocks="{stats["num_blocks"]}"' in config
    [line] = [line for line in text.splitlines() if line.startswith("lapidary:generation_tokens_total{")]
    # The engine's count has the tokens of its warm-up too.
    assert stats["num_output_tokens"] >= float(line.rsplit(" ", 1)[1]) > 0


def test_the_interpreter_is_free_while_it_answers_many(server, question):
    answers = [None] * 8

    def run(index):
        answers[index] = ask(server, question)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.001)
    assert answers == ["48 + 17 = 65"] * 8


def test_draining_completes_what_is_open_and_then_ends(question):
    server = lapidary.Server(**OPTIONS, drain_delay=600)
    tokens = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=ENDLESS, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert not server.drain(timeout=0)
        while httpx.get(f"{server.url}/ready").status_code == 200:
            pass
        assert ask(server, question) == "48 + 17 = 65"  # the delay: newcomers are served
        assert not server.drain(timeout=0)  # a second one ends it
        for line in lines:
            if line.startswith("data: {"):
                tokens += json.loads(line[6:])["choices"][0]["token_ids"]
    assert server.wait(60)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/health")
    with pytest.raises(lapidary.Error, match="ended"):
        server.stats()
    server.close()
    assert len(tokens) >= 399  # the first line may have had one


def test_closing_ends_what_is_open():
    with lapidary.Server(**OPTIONS) as server:
        stream = httpx.stream("POST", f"{server.url}/v1/completions", json=ENDLESS, timeout=60)
        with stream as answer:
            lines = answer.iter_lines()
            next(lines)
            server.close()
            with pytest.raises(httpx.TransportError):
                list(lines)


@pytest.mark.parametrize("options, named", [
    ({"max_model_length": 5}, "--max-model-len"),
    ({"max_num_seqs": "many"}, "--max-num-seqs"),
    ({"strict_tools": False}, "--no-strict-tools"),
    ({"model": "/no/such/model"}, "/no/such/model"),
    ({"host": "203.0.113.1"}, "203.0.113.1"),
    ({"config": "/no/such/file"}, "/no/such/file"),
])
def test_what_cannot_be_is_a_value_error_that_names_it(options, named):
    with pytest.raises(ValueError, match=named):
        lapidary.Server(**options)


def test_options_are_spelled_as_python_has_them(question):
    with lapidary.Server(**OPTIONS, enable_prefix_caching=False, limit_mm_per_prompt={"image": 0, "audio": 0, "video": 0},
                         strict_tools=True, api_key=["one", "two"], tokenizer=None) as server:
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        for key in ("one", "two"):
            assert httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        metrics = httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer one"}).text
        assert 'enable_prefix_caching="False"' in metrics


def in_child(server, connection):
    try:
        connection.send(server.stats())
    except lapidary.Error as error:
        connection.send(str(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_refused_with_a_sentence_and_leaves_the_server_alone(server, question):
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(server, there))
    child.start()
    assert here.poll(60)
    assert "forked" in here.recv()
    child.join(60)
    assert child.exitcode == 0
    assert ask(server, question) == "48 + 17 = 65"


def run_program(package_dir, text):
    return subprocess.run([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": package_dir},
                          capture_output=True, text=True, timeout=120)


def test_a_program_may_end_without_closing_it(package_dir):
    result = run_program(package_dir, "import lapidary; s = lapidary.Server(device='cpu', max_model_len=256); print(s.port)")
    assert result.returncode == 0 and int(result.stdout) > 0, result.stderr
    assert result.stderr == ""


def test_signals_stay_pythons(package_dir):
    result = run_program(package_dir, """
import lapidary, os, signal, threading
server = lapidary.Server(device="cpu", max_model_len=256)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    server.wait()
except KeyboardInterrupt:
    print("interrupted", server.stats()["num_running"])
signal.signal(signal.SIGTERM, lambda *_: server.drain(0))
os.kill(os.getpid(), signal.SIGTERM)
print("ended", server.wait(60))
""")
    assert result.stdout.split("\n")[:2] == ["interrupted 0", "ended True"], result.stderr


def test_ctrl_c_ends_the_wait_for_a_server_that_starts_and_closes_it_then(package_dir):
    result = run_program(package_dir, """
import lapidary, lapidary.server, os, signal, threading

class Slow:
    may_start, is_closed = threading.Event(), threading.Event()
    def __init__(self, arguments):
        os.kill(os.getpid(), signal.SIGINT)
        self.may_start.wait()
    def close(self):
        self.is_closed.set()

lapidary.server._core = type("", (), {"Server": Slow})
try:
    lapidary.Server()
except KeyboardInterrupt:
    print("interrupted")
Slow.may_start.set()
print(Slow.is_closed.wait(60))
""")
    assert result.stdout.split() == ["interrupted", "True"], result.stderr
