"""Ollama's API: /api/chat, /api/generate and what its clients ask before."""

import base64
import datetime
import json
import pathlib

import httpx
import pytest
from seeing_checkpoint import make_seeing_checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0, "num_predict": 12}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The city"}},
                   "required": ["city"]}}}


@pytest.fixture(scope="module")
def pebble(start):
    return start("--device", "cpu", model=ROOT / "models" / "pebble-e")


def lines_of(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_chat_says_what_it_says_elsewhere(server, client):
    chat = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, max_tokens=12)
    body = {"model": "tiny", "messages": HELLO, "options": GREEDY}
    whole = server.post("/api/chat", json=body | {"stream": False}).json()
    assert whole["message"] == {"role": "assistant", "content": chat.choices[0].message.content}
    assert (whole["model"], whole["done"], whole["done_reason"]) == ("tiny", True, chat.choices[0].finish_reason)
    assert (whole["prompt_eval_count"], whole["eval_count"]) == (
        chat.usage.prompt_tokens, chat.usage.completion_tokens)
    assert whole["total_duration"] >= whole["eval_duration"] > 0
    assert datetime.datetime.fromisoformat(whole["created_at"]).tzinfo
    lines = lines_of(server.post("/api/chat", json=body))
    assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"]) == (whole["done_reason"], whole["eval_count"])
    short = server.post("/api/chat", json=body | {"stream": False, "options": {"num_predict": 2}}).json()
    assert (short["done_reason"], short["eval_count"]) == ("length", 2)


def test_a_prompt_is_a_message(server):
    def answer(path, **body):
        return server.post(path, json={"model": "tiny:latest", "stream": False, "options": GREEDY, **body}).json()

    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    generated = answer("/api/generate", prompt="Hello", system="Be brief.")
    assert generated["response"] == answer("/api/chat", messages=messages)["message"]["content"]
    assert "message" not in generated
    lines = lines_of(server.post("/api/generate", json={"prompt": "Hello", "system": "Be brief.", "options": GREEDY}))
    assert "".join(line["response"] for line in lines) == generated["response"]


def test_options_are_those_of_chats(server, client):
    options = {"temperature": 1.0, "seed": 5, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "num_predict": 16,
               "repeat_penalty": 1.2, "num_ctx": 4096}
    chat = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=1.0, seed=5, top_p=0.9, max_tokens=16,
        extra_body={"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2})
    body = {"messages": HELLO, "options": options, "stream": False}
    said = server.post("/api/chat", json=body).json()["message"]["content"]
    assert said == (chat.choices[0].message.content or "")
    greedy = {"messages": HELLO, "options": GREEDY, "stream": False}
    text = server.post("/api/chat", json=greedy).json()["message"]["content"]
    stop = text[len(text) // 2:][:2]
    stopped = server.post("/api/chat", json=greedy | {"options": GREEDY | {"stop": [stop]}}).json()
    assert (stopped["message"]["content"], stopped["done_reason"]) == (text[:text.index(stop)], "stop")
    assert server.post("/api/chat", json=greedy | {"options": {"num_predict": 10**6, "temperature": 0}}).status_code == 200


def test_answers_have_the_format_that_was_asked_for(pebble):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
              "additionalProperties": False}
    for format in (schema, "json"):
        answer = pebble.post("/api/generate", json={"prompt": "What is 48 + 17? As JSON.", "format": format,
                                                    "stream": False, "options": {"temperature": 0}}).json()
        assert answer["done_reason"] == "stop"
        assert isinstance(json.loads(answer["response"]), dict)
        if format != "json":
            assert isinstance(json.loads(answer["response"])["sum"], int)


def test_tools_are_called_and_their_results_read(pebble):
    question = {"role": "user", "content": "What is the weather in Lima and in Fernhill?"}
    body = {"model": "pebble-e", "tools": [WEATHER], "options": {"temperature": 0}}
    whole = pebble.post("/api/chat", json=body | {"messages": [question], "stream": False}).json()["message"]
    calls = [call["function"] for call in whole["tool_calls"]]
    assert calls == [{"name": "get_weather", "arguments": {"city": "Lima"}},
                     {"name": "get_weather", "arguments": {"city": "Fernhill"}}]
    streamed = []
    for line in lines_of(pebble.post("/api/chat", json=body | {"messages": [question]})):
        streamed += [call["function"] for call in line["message"].get("tool_calls", [])]
    assert streamed == calls

    results = [{"role": "tool", "tool_name": "get_weather", "content": '{"sky": "sunny", "degrees": 14}'},
               {"role": "tool", "tool_name": "get_weather", "content": '{"sky": "foggy", "degrees": 27}'}]
    here = pebble.post("/api/chat", json=body | {"messages": [question, whole, *results], "stream": False}).json()
    named = [{"id": f"c{idx}", "type": "function", "function": {
        "name": call["name"], "arguments": json.dumps(call["arguments"])}} for idx, call in enumerate(calls)]
    chat = pebble.post("/v1/chat/completions", json={"temperature": 0, "tools": [WEATHER], "messages": [
        question, {"role": "assistant", "tool_calls": named},
        *[{"role": "tool", "tool_call_id": f"c{idx}", "content": result["content"]}
          for idx, result in enumerate(results)]]}).json()
    assert here["message"]["content"] == chat["choices"][0]["message"]["content"]
    assert here["prompt_eval_count"] == chat["usage"]["prompt_tokens"]


def test_thinking_is_asked_for(server):
    def prompt_tokens(**fields):
        body = {"messages": HELLO, "stream": False, "options": {"num_predict": 1}, **fields}
        return server.post("/api/chat", json=body).json()["prompt_eval_count"]

    assert prompt_tokens(think=True) == prompt_tokens(think="high") > prompt_tokens()
    assert prompt_tokens(think=False) == prompt_tokens()


def test_images_are_seen(start, request, tmp_path_factory):
    path = make_seeing_checkpoint(request.config.getoption("--lapidary"), tmp_path_factory.mktemp("seeing"))
    server = start(model=path)
    image = base64.b64encode((ROOT / "tests" / "data" / "media" / "turned.jpg").read_bytes()).decode()

    def prompt_tokens(path, body):
        answer = server.post(path, json={"stream": False, "options": {"num_predict": 1}, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()["prompt_eval_count"]

    seen = prompt_tokens("/api/chat", {"messages": [{"role": "user", "content": "Hello", "images": [image]}]})
    assert seen > prompt_tokens("/api/chat", {"messages": HELLO}) + 100
    assert prompt_tokens("/api/generate", {"prompt": "Hello", "images": [image]}) == seen
    assert "vision" in server.post("/api/show", json={}).json()["capabilities"]


def test_asking_nothing_is_answered_at_once(server):
    for path, body, field in (("/api/generate", {"model": "tiny"}, "response"), ("/api/chat", {"messages": []}, "message")):
        answer = server.post(path, json=body).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert field in answer


def test_models_are_listed_and_shown(server):
    assert httpx.get(server.url + "/api/version").json() == httpx.get(server.url + "/version").json()
    [model] = httpx.get(server.url + "/api/tags").json()["models"]
    assert (model["name"], model["details"]["family"]) == ("tiny", "gemma4")
    assert model["size"] > 100_000
    shown = server.post("/api/show", json={"model": "tiny:latest"}).json()
    assert shown["model_info"]["gemma4.context_length"] == 1024
    assert {"completion", "tools"} <= set(shown["capabilities"])


@pytest.mark.parametrize("path, body, status, words", [
    ("/api/chat", {"messages": HELLO, "model": "other"}, 404, "other"),
    ("/api/show", {"model": "other"}, 404, "other"),
    ("/api/chat", {"messages": 5}, 400, "messages"),
    ("/api/chat", {"messages": [{"role": "king", "content": "x"}]}, 400, "role"),
    ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": [5]}]}, 400, "base64"),
    ("/api/chat", {"messages": HELLO, "options": {"temperature": "hot"}}, 400, "temperature"),
    ("/api/chat", {"messages": HELLO, "options": {"num_predict": "many"}}, 400, "options.num_predict"),
    ("/api/chat", {"messages": HELLO, "format": "yaml"}, 400, "format"),
    ("/api/chat", {"messages": HELLO, "think": "hard"}, 400, "think"),
    ("/api/generate", {"prompt": "x", "raw": True}, 400, "raw"),
    ("/api/generate", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
    ("/api/embed", {"input": "x"}, 400, "embeddings"),
    ("/api/unknown", {}, 404, "/api/unknown"),
])
def test_errors_have_the_shape_of_this_api(server, path, body, status, words):
    response = server.post(path, json=body)
    assert response.status_code == status
    assert words in response.json()["error"]


def test_ollamas_own_client(pebble):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=pebble.url)
    assert [model.model for model in client.list().models] == ["pebble-e"]
    assert "tools" in client.show("pebble-e").capabilities
    question = [{"role": "user", "content": "What is 48 + 17?"}]
    options = {"temperature": 0}
    assert client.chat("pebble-e", question, options=options).message.content == "48 + 17 = 65"
    chunks = list(client.chat("pebble-e", question, options=options, stream=True))
    assert "".join(chunk.message.content for chunk in chunks) == "48 + 17 = 65"
    assert client.generate("pebble-e", "What is 48 + 17?", options=options).response == "48 + 17 = 65"
    with pytest.raises(ollama.ResponseError, match="does not exist"):
        client.chat("other", question)
