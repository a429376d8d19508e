"""An answer that was cut goes on with `resume` as if nothing had happened: its text, tokens, logprobs, calls and usage."""

import base64
import json
import pathlib

import httpx
import pytest

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
STARS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "stars.png"
CHAT, TEXT, RESPONSES, GENERATE = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/inference/v1/generate")
ASK = [{"role": "user", "content": "Tell me a story about a shepherd, a river and a star"}]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}},
          "required": ["name", "ages"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "note", "strict": True, "parameters": {
    "type": "object", "properties": {"text": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}},
    "required": ["text", "count"], "additionalProperties": False}}}]


@pytest.fixture(scope="module")
def pebble(start):
    return start("--no-spec", model=MODELS / "pebble-e")


@pytest.fixture(scope="module")
def elsewhere(start):
    """Another server, which drafts and takes small steps: the answers are the same."""
    return start("--max-num-batched-tokens", "24", model=MODELS / "pebble-e")


def chunks_of(server, path, body):
    chunks = []
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
    return chunks


def joined(chunks):
    """What chunks say together: text, thoughts, calls by their index, tokens, logprobs, the end."""
    answer = {"text": "", "reasoning": "", "calls": {}, "token_ids": [], "logprobs": [], "finish": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            answer["text"] += choice.get("text") or delta.get("content") or ""
            answer["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", []):
                name, arguments = answer["calls"].get(call["index"], ("", ""))
                answer["calls"][call["index"]] = (name + call["function"].get("name", ""),
                                                  arguments + call["function"]["arguments"])
            answer["token_ids"] += choice.get("token_ids", [])
            logprobs = choice["logprobs"] or {}
            answer["logprobs"] += logprobs.get("content") or logprobs.get("token_logprobs") or []
            answer["finish"] = choice["finish_reason"] or answer["finish"]
    return answer


def both(before, after):
    """The answer of a client that has read one stream to where it broke, and another behind it."""
    whole = {name: before[name] + after[name] for name in ("text", "reasoning", "token_ids", "logprobs")}
    whole["calls"] = {index: tuple(before["calls"].get(index, ("", ""))[part] + after["calls"].get(index, ("", ""))[part]
                                   for part in (0, 1)) for index in before["calls"] | after["calls"]}
    return {**whole, "finish": after["finish"]}


PLAIN = {"messages": ASK, "max_tokens": 60, "temperature": 1.0, "seed": 11}
CASES = {
    "sampled": (CHAT, PLAIN),
    "greedy": (CHAT, {**PLAIN, "temperature": 0}),
    "penalties": (CHAT, {**PLAIN, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3}),
    "logprobs": (CHAT, {**PLAIN, "logprobs": True, "top_logprobs": 2}),
    "stop": (CHAT, {**PLAIN, "max_tokens": 200, "stop": ["river", "the star is gone"], "min_tokens": 20}),
    "schema": (CHAT, {**PLAIN, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    "tools": (CHAT, {**PLAIN, "tools": TOOLS, "tool_choice": "required"}),
    "single call": (CHAT, {**PLAIN, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}),
    "thinking": (CHAT, {**PLAIN, "reasoning_effort": "high", "thinking_token_budget": 15}),
    "image": (CHAT, {**PLAIN, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," +
                                            base64.b64encode(STARS.read_bytes()).decode()}},
        {"type": "text", "text": "Tell me about the stars"}]}]}),
    "text": (TEXT, {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 1.2, "seed": 5, "logprobs": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stream_cut_between_any_two_chunks_goes_on_the_same(pebble, elsewhere, case):
    path, body = CASES[case]
    body = {**body, "return_token_ids": True, "stream_options": {"include_usage": True}}
    chunks = chunks_of(pebble, path, body)
    whole, usage = joined(chunks), chunks[-1]["usage"]
    assert len(whole["token_ids"]) > 5
    num_cuts = 0
    for cut in range(1, len(chunks) - 1):
        before = joined(chunks[:cut])
        if before["finish"] or not before["token_ids"]:
            continue
        rest = chunks_of(elsewhere, path, {**body, "resume": {"token_ids": before["token_ids"]}})
        assert both(before, joined(rest)) == whole, cut
        for name in ("prompt_tokens", "completion_tokens"):
            assert rest[-1]["usage"][name] == usage[name]
        name = "reasoning_tokens"
        assert rest[-1]["usage"]["completion_tokens_details"][name] == usage["completion_tokens_details"][name]
        num_cuts += 1
    assert num_cuts > 2


def test_whole_answers_hold_what_comes_behind_the_tokens(pebble):
    body = {**PLAIN, "return_token_ids": True}
    whole = pebble.post(CHAT, json=body).json()
    ids, message = whole["choices"][0]["token_ids"], whole["choices"][0]["message"]
    for cut in (1, 7, len(ids) - 1):
        rest = pebble.post(CHAT, json={**body, "resume": {"token_ids": ids[:cut]}}).json()
        assert rest["choices"][0]["token_ids"] == ids[cut:]
        assert message["content"].endswith(rest["choices"][0]["message"]["content"])
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert rest["usage"][name] == whole["usage"][name]
    assert pebble.post(CHAT, json={**body, "resume": {"token_ids": []}}).json()["choices"][0]["token_ids"] == ids


def test_a_call_that_was_cut_comes_whole_in_a_whole_answer(pebble):
    path, body = CASES["single call"]
    body = {**body, "return_token_ids": True}
    whole = pebble.post(path, json=body).json()["choices"][0]
    ids = whole["token_ids"]
    for cut in range(1, len(ids) - 2, 3):
        rest = pebble.post(path, json={**body, "resume": {"token_ids": ids[:cut]}}).json()["choices"][0]
        assert rest["finish_reason"] == whole["finish_reason"] == "tool_calls"
        [call], [expected] = rest["message"]["tool_calls"], whole["message"]["tool_calls"]
        assert call["id"] and call["function"] == expected["function"]


def test_without_a_seed_the_first_event_says_which_one_was_made(pebble, elsewhere):
    body = {key: value for key, value in PLAIN.items() if key != "seed"} | {"return_token_ids": True}
    chunks = chunks_of(pebble, CHAT, body)
    seed = chunks[0]["seed"]
    assert 0 <= seed < 2**53 and not any("seed" in chunk for chunk in chunks[1:])
    whole = joined(chunks)
    cut = len(whole["token_ids"]) // 2
    rest = chunks_of(elsewhere, CHAT, {**body, "seed": seed, "resume": {"token_ids": whole["token_ids"][:cut]}})
    assert joined(rest)["token_ids"] == whole["token_ids"][cut:]
    assert "seed" not in rest[0]
    text = {"prompt": "Once", "max_tokens": 8, "temperature": 1.0, "return_token_ids": True}
    chunks = chunks_of(pebble, TEXT, text)
    again = joined(chunks_of(elsewhere, TEXT, {**text, "seed": chunks[0]["seed"]}))
    assert again["token_ids"] == joined(chunks)["token_ids"]
    assert "seed" not in pebble.post(CHAT, json=body).json(), "a whole answer cannot break"


def events_of(server, body):
    with httpx.stream("POST", server.url + RESPONSES, json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200, response.read()
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]


@pytest.mark.parametrize("fields", [{}, {"tools": [{"type": "function", **TOOLS[0]["function"]}], "tool_choice": "required",
                                         "parallel_tool_calls": False}])
def test_responses_go_on_item_by_item(pebble, elsewhere, fields):
    body = {"input": ASK, "max_output_tokens": 60, "temperature": 1.0, "return_token_ids": True, **fields}
    events = events_of(pebble, body)
    seed = events[0]["response"]["seed"]
    ids = [token for event in events for token in event.get("token_ids", [])]
    last = events[-1]["response"]
    assert last["token_ids"][:len(ids)] == ids

    def text(some):
        return "".join(event["delta"] for event in some if event["type"].endswith(".delta"))

    cuts = [idx + 1 for idx, event in enumerate(events) if event.get("token_ids")][:-1]
    for cut in cuts[::3]:
        before = [token for event in events[:cut] for token in event.get("token_ids", [])]
        rest = events_of(elsewhere, {**body, "seed": seed, "resume": {"token_ids": before}})
        assert text(events[:cut]) + text(rest) == text(events)
        end = rest[-1]["response"]
        assert before + end["token_ids"] == last["token_ids"]
        assert end["usage"]["output_tokens"] == last["usage"]["output_tokens"]
        assert [item["type"] for item in end["output"]] == [item["type"] for item in last["output"]]
        if fields:
            assert end["output"][0]["name"] == "note"
    missing = pebble.post(RESPONSES, json={"input": "And then?", "previous_response_id": end["id"]})
    assert missing.status_code == 404, "only the end of one that goes on is known"


def refused(server, path, body):
    answer = server.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("resume"), answer.text
    return answer.json()["error"]["message"]


def test_tokens_that_could_not_have_come_are_refused_with_the_reason(pebble):
    def ids(text):
        return pebble.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]

    def why(text_or_ids, path=CHAT, **fields):
        tokens = ids(text_or_ids) if isinstance(text_or_ids, str) else text_or_ids
        base = {"prompt": "x"} if path == TEXT else {"messages": ASK}
        return refused(pebble, path, {**base, "max_tokens": 20, **fields, "resume": {"token_ids": tokens}})

    assert "does not go on behind" in why("The river. " * 20)
    assert "stops the answer" in why(ids("The river") + [106])
    assert "stops the answer" in why(ids("The river"), stop_token_ids=ids("The river")[-1:])
    assert "outside the vocabulary" in why([10**9])
    assert "none that may be generated" in why("The river", allowed_token_ids=[7, 8])
    assert "at a stop string" in why("The river runs", stop=["river"])
    assert "does not fit" in why("The river", guided_choice=["yes", "no"])
    assert "does not fit" in why(" river", bad_words=["river"])
    call = ids('<|tool_call>call:note{count:1,text:<|"|>x<|"|>}<tool_call|>')
    assert "with its only call" in why(call, tools=TOOLS, parallel_tool_calls=False, max_tokens=60)
    assert "'n' must be 1" in why("The", n=2)
    assert "excludes" in why("The", prompt_logprobs=1)
    assert "excludes" in why("The", path=TEXT, echo=True)
    assert "2 prompts" in why("The", path=TEXT, prompt=["x", "y"])
    for resume in ([], "x", {}, {"token_ids": "x"}, {"token_ids": [-1]}, {"token_ids": [1.5]}):
        refused(pebble, CHAT, {"messages": ASK, "resume": resume})
