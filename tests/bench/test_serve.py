"""`lapidary bench serve`."""

import json
import signal
import subprocess
import threading
import time
import urllib.request

import pytest


def stream_tokens(handler, body, gap=0.0):
    """A well-behaved answer: one token a chunk, then the usage."""
    count = body["max_tokens"]
    handler.begin_events()
    for index in range(count):
        time.sleep(gap)
        finish = "length" if index == count - 1 else None
        handler.send_event({"choices": [{"index": 0, "text": "x", "finish_reason": finish}]})
    handler.send_event({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]),
                                                 "completion_tokens": count}})
    handler.end_events()


def test_our_server_is_measured(bench_serve, server):
    done = bench_serve(server.url)
    assert done.returncode == 0, done.stderr
    assert "============ Serving Benchmark Result ============" in done.stdout
    assert done.result["completed"] == 6 and done.result["failed"] == 0
    assert done.result["total_input_tokens"] == 6 * 20
    assert done.result["total_output_tokens"] == 6 * 10
    assert done.result["model_id"] == "tiny"
    assert done.result["request_rate"] == "inf"
    assert done.result["duration"] > 0
    for metric in ("ttft", "tpot", "itl"):
        for statistic in ("mean", "median", "std", "p99"):
            assert f"{statistic}_{metric}_ms" in done.result
    assert done.result["median_ttft_ms"] > 0
    assert done.result["output_throughput"] == pytest.approx(60 / done.result["duration"])


def test_chat_is_measured(bench_serve, server):
    done = bench_serve(server.url, "--endpoint", "/v1/chat/completions", "--num-prompts", "3")
    assert done.returncode == 0, done.stderr
    assert done.result["completed"] == 3
    assert done.result["total_output_tokens"] == 30
    assert done.result["total_input_tokens"] > 3 * 20  # the template adds its own


def test_lengths_vary_within_the_range_and_follow_the_seed(bench_serve, server):
    flags = ("--random-range-ratio", "0.5", "--random-prefix-len", "7", "--num-prompts", "12")
    first = bench_serve(server.url, *flags).result
    assert all(7 + 10 <= length <= 7 + 30 for length in first["input_lens"])
    assert all(5 <= length <= 15 for length in first["output_lens"])
    assert len(set(first["input_lens"])) > 1
    again = bench_serve(server.url, *flags).result
    assert again["input_lens"] == first["input_lens"]
    other = bench_serve(server.url, *flags, "--seed", "2").result
    assert other["input_lens"] != first["input_lens"]


def test_requests_are_what_was_asked_for(bench_serve, stub):
    server = stub(lambda handler, _, body: stream_tokens(handler, body))
    done = bench_serve(server.url, "--temperature", "0", "--top-k", "40", "--extra-body",
                       '{"n": 1}', "--header", "X-Team=a=b", env={"OPENAI_API_KEY": "secret"})
    assert done.returncode == 0, done.stderr
    assert len(server.bodies) == 7  # the trial too
    for body in server.bodies:
        assert body["model"] == "stub" and body["stream"] and body["max_tokens"] == 10
        assert len(body["prompt"]) == 20 and all(250 <= token < 1000 for token in body["prompt"])
        assert body["ignore_eos"] is True and body["temperature"] == 0 and body["top_k"] == 40
        assert body["n"] == 1
    for headers in server.headers:
        assert headers["Authorization"] == "Bearer secret" and headers["X-Team"] == "a=b"
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(set(prompts)) == 7  # the trial warms no prefix
    assert "secret" not in done.stdout + done.stderr
    assert done.result["output_lens"] == [10] * 6


def test_max_concurrency_is_respected(bench_serve, stub):
    server = stub(lambda handler, _, body: stream_tokens(handler, body, gap=0.01))
    done = bench_serve(server.url, "--num-prompts", "40", "--max-concurrency", "5")
    assert done.returncode == 0, done.stderr
    assert server.max_open == 5
    assert done.result["max_concurrent_requests"] <= 5
    assert done.result["max_concurrency"] == 5
    assert "Maximum request concurrency:             5" in done.stdout


def test_hundreds_are_open_at_once(bench_serve, stub):
    everyone = threading.Barrier(300)

    def answer(handler, number, body):
        if number > 0:  # not the trial
            everyone.wait(60)
        stream_tokens(handler, body)

    server = stub(answer)
    done = bench_serve(server.url, "--num-prompts", "300", "--random-output-len", "2")
    assert done.returncode == 0, done.stderr
    assert done.result["completed"] == 300
    assert server.max_open == 300


def test_requests_arrive_at_the_rate(bench_serve, stub):
    server = stub(lambda handler, _, body: stream_tokens(handler, body))
    done = bench_serve(server.url, "--num-prompts", "20", "--request-rate", "20", "--burstiness", "inf")
    assert done.returncode == 0, done.stderr
    arrivals = server.arrivals[1:]
    assert arrivals[-1] - arrivals[0] == pytest.approx(19 / 20, abs=0.4)
    assert done.result["duration"] >= 1.0
    assert done.result["request_rate"] == 20


def test_latency_is_the_servers(bench_serve, stub):
    server = stub(lambda handler, _, body: stream_tokens(handler, body, gap=0.05))
    done = bench_serve(server.url, "--num-prompts", "2", "--percentile-metrics", "ttft,tpot,itl,e2el",
                       "--metric-percentiles", "50,90")
    result = done.result
    assert result["median_ttft_ms"] >= 50
    assert 50 <= result["mean_tpot_ms"] < 500
    assert 50 <= result["p50_itl_ms"] < 500
    assert result["p90_e2el_ms"] >= 500
    assert "P90 E2EL (ms):" in done.stdout


def test_a_server_that_is_full_is_counted_and_explained(bench_serve, stub):
    def answer(handler, number, body):
        if number % 2 == 0:
            return stream_tokens(handler, body)
        handler.send_json(503, {"error": {"message": "the queue is full"}}, Retry_After="1")

    done = bench_serve(stub(answer).url)
    assert done.returncode == 0, done.stderr
    assert done.result["completed"] == 3 and done.result["failed"] == 3
    assert done.result["total_output_tokens"] == 30
    assert "Failed requests:                         3" in done.stdout
    assert "3 failed: HTTP 503 Service Unavailable: the queue is full" in done.stderr


def test_a_server_that_always_fails_fails_the_run(bench_serve, stub):
    def answer(handler, number, body):
        if number == 0:
            return stream_tokens(handler, body)
        handler.send_json(500, {"error": {"message": "no"}})

    done = bench_serve(stub(answer).url)
    assert done.returncode == 1
    assert "all 6 requests failed" in done.stderr
    assert done.result["failed"] == 6 and done.result["output_throughput"] == 0


def test_a_refused_trial_ends_the_run(bench_serve, stub):
    server = stub(lambda handler, *_: handler.send_json(400, {"error": {"message": "too long"}}))
    done = bench_serve(server.url)
    assert done.returncode == 1
    assert "HTTP 400 Bad Request: too long" in done.stderr
    assert server.num_requests == 1


def test_streams_that_break_off_are_failures(bench_serve, stub):
    def answer(handler, number, body):
        if number == 0:
            return stream_tokens(handler, body)
        handler.begin_events()
        handler.send_event({"choices": [{"text": "x", "finish_reason": None}]})
        if number % 2 == 0:
            handler.send_event({"error": {"message": "the device is gone"}})
            handler.end_events()
        handler.close_connection = True
        handler.connection.shutdown(2)

    done = bench_serve(stub(answer).url)
    assert done.returncode == 1
    assert "3 failed: the device is gone" in done.stderr
    assert "3 failed: the server closed the connection before the answer was complete" in done.stderr


def num_requests_running(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines
               if line.startswith("lapidary:num_requests_running{"))


def test_a_server_that_dies_does_not_hang_the_run(bench_serve, start_server):
    server = start_server()
    outcome = {}
    thread = threading.Thread(target=lambda: outcome.update(done=bench_serve(
        server.url, "--num-prompts", "2000", "--random-output-len", "400", "--max-concurrency", "4")))
    thread.start()
    # The trial request comes alone; more than one at once is the run.
    deadline = time.monotonic() + 60
    while num_requests_running(server) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.stop(signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    done = outcome["done"]
    assert done.result is not None, done.stderr
    assert done.result["failed"] > 0
    assert done.result["completed"] + done.result["failed"] == 2000
    assert done.returncode == (0 if done.result["completed"] else 1)
    assert "Connection refused" in done.stderr


def test_a_silent_server_is_given_up(bench_serve, stub):
    def answer(handler, number, body):
        if number == 0:
            return stream_tokens(handler, body)
        handler.begin_events()
        time.sleep(5)

    done = bench_serve(stub(answer).url, "--num-prompts", "2", "--request-timeout", "0.5")
    assert done.returncode == 1
    assert "2 failed: the server sent nothing for too long" in done.stderr


def test_a_server_that_is_not_there(bench_serve):
    done = bench_serve("http://127.0.0.1:9", "--ready-check-timeout-sec", "1")
    assert done.returncode == 1
    assert "does not answer /v1/models: Connection refused" in done.stderr


def test_the_vocabulary_must_be_known(bench_serve, stub):
    server = stub(lambda handler, _, body: stream_tokens(handler, body),
                  models={"data": [{"id": "other"}]})
    done = bench_serve(server.url)
    assert done.returncode == 1
    assert "give --vocab-size" in done.stderr
    assert bench_serve(server.url, "--vocab-size", "500").returncode == 0
    assert max(max(body["prompt"]) for body in server.bodies) < 500


@pytest.mark.parametrize("flags, message", [
    (("--base-url", "localhost"), "must look like http://"),
    (("--dataset-name", "sharegpt"), "needs a --dataset-path"),
    (("--percentile-metrics", "speed"), "choose from ttft"),
    (("--metric-percentiles", "101"), "from 0 to 100"),
    (("--metric-percentiles", "x"), "from 0 to 100"),
    (("--extra-body", "[]"), "must be a JSON object"),
    (("--extra-body", "{"), "--extra-body"),
    (("--header", "x"), "KEY=VALUE"),
    (("--metadata", "x"), "KEY=VALUE"),
    (("--endpoint", "v1"), "begin with /"),
    (("--backend", "openai-chat", "--endpoint", "/x"), "ends with chat/completions"),
])
def test_bad_flags_are_explained(lapidary, flags, message):
    done = lapidary("bench", "serve", *flags)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize("flags", [("--request-rate", "0"), ("--request-rate", "x"),
                                   ("--max-concurrency", "0"), ("--num-prompts", "0"),
                                   ("--dataset-name", "none"), ("--burstiness", "-1")])
def test_bad_numbers_are_refused(lapidary, flags):
    assert lapidary("bench", "serve", *flags).returncode == 2


def test_results_can_be_appended_and_labelled(lapidary, stub, tmp_path):
    server = stub(lambda handler, _, body: stream_tokens(handler, body))
    for _ in range(2):
        done = lapidary("bench", "serve", "--base-url", server.url, "--num-prompts", "1",
                        "--random-input-len", "4", "--random-output-len", "2", "--append-result",
                        "--result-dir", tmp_path / "new", "--result-filename", "all.json",
                        "--label", "mine", "--metadata", "version=3")
        assert done.returncode == 0, done.stderr
    lines = (tmp_path / "new" / "all.json").read_text().splitlines()
    assert len(lines) == 2
    result = json.loads(lines[1])
    assert result["label"] == "mine" and result["version"] == "3"
    assert "ttfts" not in result


def test_an_unwritable_file_is_an_error(lapidary, stub):
    server = stub(lambda handler, _, body: stream_tokens(handler, body))
    done = lapidary("bench", "serve", "--base-url", server.url, "--num-prompts", "1",
                    "--random-input-len", "4", "--random-output-len", "2", "--save-result",
                    "--result-filename", "/nowhere/at/all.json")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


def test_prompts_come_from_a_file(bench_serve, server, tmp_path):
    custom = tmp_path / "custom.jsonl"
    custom.write_text("".join(json.dumps({"prompt": "x" * length, "output_tokens": length}) + "\n" for length in (5, 9)))
    flags = ("--dataset-path", custom, "--num-prompts", "4", "--ignore-eos")
    done = bench_serve(server.url + "/v1", "--dataset-name", "custom", *flags)
    assert done.returncode == 0, done.stderr
    assert done.result["completed"] == 4 and set(done.result["output_lens"]) == {5, 9}
    assert "some are sent again" in done.stderr

    talk = [{"conversations": [{"from": "human", "value": "w" * 30}, {"from": "gpt", "value": "z" * length}]}
            for length in (2, 6, 8, 3000)]
    sharegpt = tmp_path / "talk.json"
    sharegpt.write_text(json.dumps(talk))
    flags = ("--dataset-path", sharegpt, "--num-prompts", "4", "--ignore-eos")
    done = bench_serve(server.url, "--dataset-name", "sharegpt", *flags)
    assert done.returncode == 0, done.stderr
    assert set(done.result["output_lens"]) == {6, 8}, "neither tiny nor long ones"
    done = bench_serve(server.url, "--dataset-name", "sharegpt", *flags, "--sharegpt-output-len", "5",
                       "--endpoint", "/v1/chat/completions")
    assert set(done.result["output_lens"]) == {5}
    for name, problem in (("custom", "line 1"), ("sharegpt", "list of conversations")):
        bad = tmp_path / "bad.json"
        bad.write_text("{}")
        done = bench_serve(server.url, "--dataset-name", name, "--dataset-path", bad)
        assert done.returncode == 1 and problem in done.stderr


def test_good_requests_are_counted(bench_serve, server):
    done = bench_serve(server.url, "--goodput", "ttft:60000", "e2el:60000")
    assert done.result["request_goodput"] == pytest.approx(done.result["request_throughput"])
    assert "Request goodput (req/s):" in done.stdout
    assert bench_serve(server.url, "--goodput", "e2el:0.001").result["request_goodput"] == 0
    for wrong in ("itl:5", "ttft", "ttft:x", "ttft:-1"):
        done = bench_serve(server.url, "--goodput", wrong)
        assert done.returncode == 1 and "--goodput" in done.stderr, wrong


def test_the_rate_ramps_up(bench_serve, server):
    ramp = ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "5", "--ramp-up-end-rps", "50", "--burstiness", "inf")
    done = bench_serve(server.url, *ramp)
    assert done.returncode == 0, done.stderr
    starts = sorted(done.result["start_times"])
    assert starts[1] - starts[0] > 1.5 * (starts[5] - starts[4])
    done = bench_serve(server.url, *ramp, "--request-rate", "5")
    assert done.returncode == 1 and "leave --request-rate out" in done.stderr


def test_https_is_spoken_to_those_who_are_trusted(bench_serve, start_server, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    server = start_server("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    assert server.url.startswith("https://127.0.0.1:")
    named = server.url.replace("127.0.0.1", "localhost")
    done = bench_serve(named + "/v1", env={"SSL_CERT_FILE": str(certificate)})
    assert done.returncode == 0, done.stderr
    assert done.result["completed"] == 6
    assert bench_serve(server.url, "--insecure").returncode == 0
    # Neither an unknown certificate nor another's name; nobody waits for them to become right.
    for url, environment in ((named, {}), (server.url, {"SSL_CERT_FILE": str(certificate)})):
        done = bench_serve(url, env=environment, timeout=30)
        assert done.returncode == 1 and "certificate is not trusted here" in done.stderr
    done = bench_serve(named.replace("https", "http"), "--ready-check-timeout-sec", "1")
    assert done.returncode == 1
