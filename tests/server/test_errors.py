"""What must be refused, and how: the right status, OpenAI's nesting, the field at fault."""

import concurrent.futures
import json
import time

import httpx
import openai
import pytest

HELLO = [{"role": "user", "content": "Hello"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def refuse(server, path, body, status=400):
    content = body if isinstance(body, (str, bytes)) else json.dumps(body)
    response = server.post(path, content=content)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"', b"\xff\xfe", '{"messages": [}', "[" * 100_000,
                                  '{"a":' * 1000])
def test_bad_json(server, body):
    refuse(server, CHAT, body)


def test_object_with_too_many_keys(server):
    refuse(server, CHAT, {str(key): 0 for key in range(5000)})


@pytest.mark.parametrize("param,value", [
    ("messages", None), ("messages", []), ("messages", "hi"), ("messages[0]", ["hi"]),
    ("messages[0].role", [{"content": "x"}]), ("messages[0].role", [{"role": "king", "content": "x"}]),
    ("messages[0].content", [{"role": "user"}]), ("messages[0].content", [{"role": "user", "content": 3}]),
    ("messages[0].content[0]", [{"role": "user", "content": [{"type": "text"}]}]),
    ("messages[0].content[0].image_url.url",
     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages[0].content[0]", [{"role": "user", "content": [{"type": "input_audio"}]}]),
    ("messages[0].tool_calls[0]", [{"role": "assistant", "tool_calls": [{}]}]),
    ("messages[0].tool_calls[0]", [{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "[" * 99999}}]}]),
])
def test_bad_messages(server, param, value):
    assert refuse(server, CHAT, {"messages": value})["param"] == param


@pytest.mark.parametrize("param,value", [
    ("temperature", "hot"), ("temperature", -1), ("top_p", 2), ("top_p", 0), ("top_k", -2), ("min_p", 1.5),
    ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("n", 0), ("n", 1.5),
    ("n", 100000), ("max_tokens", 0), ("max_tokens", 1 << 70), ("seed", "x"), ("stop", 5), ("stop", [1]),
    ("stop", ["x"] * 17), ("stop_token_ids", "x"), ("stop_token_ids", [-1]), ("stream", 1),
    ("logprobs", 3), ("top_logprobs", 3), ("logit_bias", {"x": 1}), ("logit_bias", {"1": "x"}),
    ("logit_bias", {"99999999": 1}), ("logit_bias", {"5": 1000}), ("stream_options", {"include_usage": True}),
    ("response_format", {"type": "yaml"}), ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "int"}}}),
    ("structured_outputs", 3), ("guided_regex", "("), ("guided_regex", 3), ("guided_choice", []),
    ("grammar", "root ::= missing"), ("json_schema", {"uniqueItems": True}),
    ("thinking_token_budget", -2), ("thinking_token_budget", "many"), ("tool_choice", "required"), ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("tools", {}), ("tools[0]", [{}]), ("tools[0]", [{"type": "function", "function": {"name": 3}}]),
    ("chat_template_kwargs", 3), ("chat_template_kwargs.enable_thinking", "yes"), ("prompt_logprobs", "x"),
    ("echo", True), ("guided_json", {"minimum": "x"}), ("functions", []), ("model", 3), ("parallel_tool_calls", "no"),
])
def test_bad_fields(server, param, value):
    assert refuse(server, CHAT, {"messages": HELLO, param.split("[")[0].split(".")[0]:
                                 {"enable_thinking": value} if "." in param else value})["param"] == param


@pytest.mark.parametrize("param,value", [
    ("prompt", None), ("prompt", {}), ("prompt", [[1], ["x"]]), ("prompt", [1, "x"]), ("prompt", [99999999]),
    ("prompt", []), ("prompt", ["x"] * 200), ("echo", 1), ("suffix", "x"), ("best_of", 2), ("logprobs", 21),
])
def test_bad_text_completions(server, param, value):
    assert refuse(server, TEXT, {"prompt": "x", param: value})["param"] == param


def test_too_long_names_the_counts(server):
    error = refuse(server, TEXT, {"prompt": [5] * 2000})
    assert error["code"] == "context_length_exceeded"
    assert "1024" in error["message"] and "2000" in error["message"]
    error = refuse(server, CHAT, {"messages": HELLO, "max_tokens": 1024})
    assert "1024" in error["message"]


def test_unknown_model(server):
    error = refuse(server, CHAT, {"messages": HELLO, "model": "gpt"}, 404)
    assert error["code"] == "model_not_found"
    assert "'tiny'" in error["message"], "what there is instead"
    with server.client() as client, pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


def test_unknown_paths_and_methods(server):
    refuse(server, "/v1/nothing", {}, 404)
    assert httpx.get(server.url + CHAT).status_code == 405


def test_unknown_fields_are_ignored_and_logged(server):
    response = server.post(CHAT, json={"messages": HELLO, "max_tokens": 1, "wibble": 1})
    assert response.status_code == 200
    deadline = time.monotonic() + 10  # The log is read by another thread.
    while not any("wibble" in line for line in server.log):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_limits_of_head_and_body(server):
    assert server.post(CHAT, content=b"x" * (9 << 20)).status_code == 413
    assert httpx.get(server.url + "/health", headers={"x": "y" * 20000}).status_code == 431


def test_errors_name_no_paths(server, checkpoint):
    for body in ("{", {"messages": HELLO, "model": "../x"}, {"messages": [{"role": "tool", "content": "x"}]}):
        content = body if isinstance(body, str) else json.dumps(body)
        assert str(checkpoint) not in server.post(CHAT, content=content).text


def test_api_key(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("file-key\n\nother-key\r\n")
    server = start("--api-key", "flag-key", "--api-key-file", str(keys))
    for key in ("wrong", "flag-ke", "flag-keys"):
        with server.client(api_key=key) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
    for key in ("flag-key", "file-key", "other-key"):
        with server.client(api_key=key) as client:
            assert client.models.list().data
    assert httpx.get(server.url + "/v1/models").status_code == 401
    assert httpx.get(server.url + "/health").status_code == 200
    assert server.stop() == 0


def test_cors(start, server):
    ours = {"Origin": "https://app.example"}
    refused = httpx.get(server.url + "/health", headers=ours)
    assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers
    open_server = start("--allowed-origins", "https://app.example", "--api-key", "k")
    preflight = httpx.options(open_server.url + CHAT, headers=ours)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    other = httpx.options(open_server.url + CHAT, headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
    assert open_server.stop() == 0


def test_full_queue_is_503(start):
    server = start("--max-num-seqs", "1", "--max-queue", "2")
    body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(16) as clients:  # more than run and wait, all at once
        responses = list(clients.map(lambda _: server.post(TEXT, json=body), range(16)))
    refused = [response for response in responses if response.status_code != 200]
    assert 0 < len(refused) < len(responses)
    for response in refused:
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["code"] == "queue_full"
    never = server.post(TEXT, json={"prompt": "x", "n": 5, "max_tokens": 1})
    assert never.status_code == 400 and "retry-after" not in never.headers
    assert "only 2 may wait" in never.json()["error"]["message"]
    assert server.post(TEXT, json={"prompt": "x", "max_tokens": 1}).status_code == 200
    server.wait_until_idle()
    assert server.stop() == 0
