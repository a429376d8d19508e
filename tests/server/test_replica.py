"""What routers and load balancers want of a replica: tokens in and out, prompts as tokens, salts, readiness, a quiet end."""

import json
import pathlib
import signal
import time

import httpx
import pytest

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
HELLO = [{"role": "user", "content": "Hello"}]
PEBBLE = pathlib.Path(__file__).resolve().parents[2] / "models" / "pebble-e"
# One pixel.
DOT = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5"
       "ErkJggg==")


def generate(server, token_ids, **fields):
    body = {"token_ids": token_ids, "sampling_params": {"max_tokens": 12, "seed": 3, "temperature": 1.0}, **fields}
    return server.post(GENERATE, json=body)


def test_tokens_in_and_out_are_those_of_a_text_completion(server):
    sampling = {"max_tokens": 20, "seed": 3, "temperature": 1.0, "ignore_eos": True}
    text = server.post(TEXT, json={"prompt": [2, 9, 300], "return_token_ids": True, **sampling}).json()
    answer = generate(server, [2, 9, 300], request_id="mine", sampling_params={**sampling, "logprobs": 2}).json()
    [choice] = answer["choices"]
    assert answer["request_id"] == "mine" and answer["model"] == "tiny"
    assert choice["token_ids"] == text["choices"][0]["token_ids"]
    assert choice["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 20
    assert len(choice["logprobs"]["content"]) == 20 and len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert not {"text", "message", "prompt_token_ids"} & (choice.keys() | answer.keys())


def test_streamed_tokens_are_those_of_the_whole_and_go_on_where_they_were_cut(server):
    fields = {"sampling_params": {"max_tokens": 30, "temperature": 1.5, "ignore_eos": True, "n": 1}}
    with httpx.stream("POST", server.url + GENERATE, json={
            "token_ids": [2, 8, 9], "stream": True, "stream_options": {"include_usage": True}, **fields}) as stream:
        lines = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert chunks[-1]["usage"]["completion_tokens"] == 30
    assert len({chunk["request_id"] for chunk in chunks}) == 1
    parts = [choice["token_ids"] for chunk in chunks for choice in chunk["choices"]]
    assert len(parts) >= 15 and all(parts), "every token is told of, whether or not it has text"
    ids = sum(parts, [])
    fields["sampling_params"]["seed"] = chunks[0]["seed"]
    assert generate(server, [2, 8, 9], **fields).json()["choices"][0]["token_ids"] == ids
    for cut in (1, 13, 29):
        rest = generate(server, [2, 8, 9], **fields, resume={"token_ids": ids[:cut]}).json()
        assert rest["choices"][0]["token_ids"] == ids[cut:]
        assert rest["usage"]["completion_tokens"] == 30


def test_without_a_limit_the_answer_may_fill_the_context(server):
    answer = generate(server, [2, 8, 9], sampling_params={"ignore_eos": True}).json()
    assert answer["usage"]["total_tokens"] == 1024


@pytest.mark.parametrize("body, param", [
    ({}, "token_ids"), ({"token_ids": []}, "token_ids"), ({"token_ids": "Hello"}, "token_ids"),
    ({"token_ids": [[1], [2]]}, "token_ids"), ({"token_ids": [1, -1]}, "token_ids"),
    ({"token_ids": [5] * 1024, "sampling_params": {"max_tokens": 5}}, "token_ids"), ({"token_ids": [10**6]}, "token_ids"),
    ({"token_ids": [2], "sampling_params": 5}, "sampling_params"),
    ({"token_ids": [2], "sampling_params": {"temperature": -1}}, "temperature"),
    ({"token_ids": [2], "features": {"mm_hashes": {}}}, "features"),
    ({"token_ids": [2], "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    ({"token_ids": [2], "request_id": "x" * 200}, "request_id"),
    ({"token_ids": [2], "cache_salt": ""}, "cache_salt"), ({"token_ids": [2], "cache_salt": "x" * 1025}, "cache_salt")])
def test_wrong_bodies_are_refused_by_the_field(server, body, param):
    answer = server.post(GENERATE, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_a_rendered_chat_generates_the_same(server):
    body = {"messages": HELLO, "max_tokens": 12, "seed": 5, "temperature": 1.2, "repetition_penalty": 1.1,
            "stop": ["zzz"], "logit_bias": {"300": 5}, "cache_salt": "mine", "return_token_ids": True}
    chat = server.post(CHAT, json=body).json()
    rendered = server.post(CHAT + "/render", json=body).json()
    assert rendered["token_ids"] == chat["prompt_token_ids"]
    assert rendered["features"] is None and rendered["cache_salt"] == "mine"
    assert rendered["sampling_params"]["max_tokens"] == 12
    answer = server.post(GENERATE, json=rendered).json()
    assert answer["request_id"] == rendered["request_id"]
    assert answer["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"]
    assert "max_tokens" in server.post(CHAT + "/render", json={"messages": HELLO}).json()["sampling_params"]


def test_rendered_texts_are_a_list(server):
    body = {"prompt": ["Once", [2, 5, 6]], "max_tokens": 4, "seed": 5, "guided_choice": ["yes", "no"]}
    first, second = server.post(TEXT + "/render", json=body).json()
    tokens = server.post("/tokenize", json={"prompt": "Once"}).json()["tokens"]
    assert (first["token_ids"], second["token_ids"]) == (tokens, [2, 5, 6])
    assert first["sampling_params"]["guided_choice"] == ["yes", "no"]
    assert server.post(TEXT + "/render", json={"prompt": ""}).status_code in (200, 400)
    assert server.post(TEXT + "/render", json={}).status_code == 400


def test_rendered_images_have_hashes_and_places(start):
    server = start(model=PEBBLE)

    def render(*parts):
        content = [{"type": "image_url", "image_url": {"url": url}} for url in parts] + [{"type": "text", "text": "?"}]
        return server.post(CHAT + "/render", json={"messages": [{"role": "user", "content": content}]}).json()

    one, two = render(DOT), render(DOT, DOT)
    [place] = one["features"]["mm_placeholders"]["image"]
    assert len(set(one["token_ids"][place["offset"]:place["offset"] + place["length"]])) == 1
    assert one["features"]["mm_hashes"]["image"] * 2 == two["features"]["mm_hashes"]["image"]
    assert len(two["features"]["mm_placeholders"]["image"]) == 2


def test_prompts_under_other_salts_are_not_shared(server):
    prompt = "A prompt that nobody else has in this test, and that is long enough to be kept. " * 4

    def cached(**fields):
        answer = server.post(TEXT, json={"prompt": prompt, "max_tokens": 2, **fields}).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(), cached(cache_salt="a"), cached(cache_salt="b")] == [0, 0, 0]
    assert all([cached(), cached(cache_salt="a"), cached(cache_salt="b")])


def test_a_rank_other_than_0_is_refused(server):
    def status(rank):
        return server.post(GENERATE, json={"token_ids": [2], "sampling_params": {"max_tokens": 1}},
                           headers={"X-data-parallel-rank": rank}).status_code
    assert [status("0"), status("1"), status("x")] == [200, 400, 400]


def test_metrics_tell_of_steps_and_of_where_prompts_came_from(start):
    server = start()
    for _ in range(2):
        server.post(TEXT, json={"prompt": "The same, word for word, and long enough to be kept. " * 3, "max_tokens": 8,
                                "ignore_eos": True})
    sources = {name: server.metric("prompt_tokens_by_source_total", source=name)
               for name in ("local_compute", "local_cache_hit")}
    assert sources["local_cache_hit"] == server.metric("prefix_cache_hits_total") > 0
    assert sum(sources.values()) == server.metric("prefix_cache_queries_total")
    assert server.metric("iteration_tokens_total_sum") >= sources["local_compute"] + 14
    num_steps = server.metric("iteration_tokens_total_count")
    assert num_steps == server.metric("iteration_tokens_total_bucket", le="+Inf")
    assert 0 < server.metric("iteration_tokens_total_bucket", le="1") < num_steps


def test_with_a_drain_delay_newcomers_are_served_until_it_ends(start):
    server = start("--drain-delay", "3600")

    def status(path):
        return httpx.get(server.url + path).status_code

    assert (status("/ready"), status("/health")) == (200, 200)
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 60
    while status("/ready") == 200:
        assert time.monotonic() < deadline
    assert httpx.get(server.url + "/ready").json()["error"]["code"] == "shutting_down"
    assert (status("/ready"), status("/health"), status("/v1/models")) == (503, 200, 200)
    assert server.post(CHAT, json={"messages": HELLO, "max_tokens": 3}).status_code == 200
    assert server.stop() == 0, "a second signal ends the delay"


def test_a_drain_delay_ends_by_itself(start):
    server = start("--drain-delay", "0.2")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_ready_needs_no_key(start):
    server = start("--api-key", "secret")
    assert [httpx.get(server.url + path).status_code for path in ("/ready", "/health", "/metrics")] == [200, 200, 401]
