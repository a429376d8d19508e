"""What lapidary.ray does without Ray: streams that go on at another server, prefixes, its command line."""

import json
import os
import subprocess
import sys

import httpx
import lapidary
import pytest
from lapidary.ray.prefixes import PrefixIndex, prefix_keys
from lapidary.ray.resumed_stream import Cut, ResumedStream

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
ASK = [{"role": "user", "content": "Tell me a story about a shepherd, a river and a star"}]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}},
          "required": ["name", "ages"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "note", "strict": True, "parameters": {
    "type": "object", "properties": {"text": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}},
    "required": ["text", "count"], "additionalProperties": False}}}]
SAMPLED = {"messages": ASK, "max_tokens": 40, "temperature": 1.0, "seed": 11, "stream": True}
CASES = {
    "sampled": (CHAT, SAMPLED),
    "greedy, with usage": (CHAT, {**SAMPLED, "temperature": 0, "stream_options": {"include_usage": True}}),
    "with ids": (CHAT, {**SAMPLED, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}),
    "schema": (CHAT, {**SAMPLED, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    "tools": (CHAT, {**SAMPLED, "tools": TOOLS, "tool_choice": "required"}),
    "thinking": (CHAT, {**SAMPLED, "reasoning_effort": "high", "thinking_token_budget": 15}),
    "text": (TEXT, {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 1.2, "seed": 5, "stream": True}),
    "tokens": (GENERATE, {"token_ids": [2, 105, 9, 106], "stream": True, "sampling_params": {
        "max_tokens": 30, "temperature": 1.0, "seed": 3}}),
    "gone on with already": (TEXT, {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "stream": True,
                                    "resume": {"token_ids": []}}),
}


@pytest.fixture(scope="module")
def server():
    with lapidary.Server(device="cpu", max_model_len=512) as server:
        yield server


def events_of(server, path, body):
    reply = httpx.post(server.url + path, content=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return [event + b"\n\n" for event in reply.content.split(b"\n\n") if event]


def relayed(server, path, request, cuts):
    """What a client sees of an answer whose servers die after so many events each."""
    stream = ResumedStream(path, request)
    seen = []
    for cut in [*cuts, None]:
        for event in events_of(server, path, stream.body())[:cut]:
            seen.append(stream.feed(event))
        if stream.is_done:
            break
        assert stream.can_go_on
    assert stream.is_done
    return b"".join(seen)


def joined(content):
    """Text, thoughts, calls, ids, logprobs and the end that a stream's chunks say together, and what repeats."""
    assert content.endswith(b"data: [DONE]\n\n")
    chunks = [json.loads(event[6:]) for event in content.split(b"\n\n") if event.startswith(b"data: {")]
    assert len({(chunk.get("id"), chunk.get("created"), chunk.get("request_id")) for chunk in chunks}) == 1
    answer = {"text": "", "reasoning": "", "calls": "", "token_ids": [], "logprobs": [], "finish": [], "usage": [],
              "roles": 0, "seeds": 0}
    for chunk in chunks:
        usage = chunk.get("usage")
        answer["usage"] += [(usage["prompt_tokens"], usage["completion_tokens"])] if usage else []
        answer["seeds"] += "seed" in chunk
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            answer["text"] += choice.get("text") or delta.get("content") or ""
            answer["reasoning"] += delta.get("reasoning") or ""
            answer["roles"] += "role" in delta
            for call in delta.get("tool_calls", []):
                answer["calls"] += call["function"].get("name", "") + call["function"]["arguments"]
            answer["token_ids"] += choice.get("token_ids", [])
            logprobs = choice.get("logprobs") or {}
            answer["logprobs"] += logprobs.get("content") or []
            answer["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return answer


@pytest.mark.parametrize("case", CASES)
def test_a_stream_cut_after_any_event_ends_as_if_nothing_had_been(server, case):
    path, request = CASES[case]
    whole = relayed(server, path, request, [])
    answer = joined(whole)
    assert len(answer["finish"]) == 1 and answer["roles"] == (path == CHAT)
    assert (b'"token_ids":[' in whole) == ("ids" in case or path == GENERATE)
    num_events = whole.count(b"\n\n")
    assert num_events > 4
    some = 1 if case in ("greedy, with usage", "tools") else 3
    for cut in {*range(1, num_events, some), num_events - 1}:
        again = joined(relayed(server, path, request, [cut]))
        assert again == answer, f"cut after {cut} of {num_events} events"
    assert joined(relayed(server, path, request, [2, 3, 2])) == answer


def test_a_seed_that_the_server_made_is_kept(server):
    request = {**SAMPLED, "temperature": 1.5}
    del request["seed"]
    stream = ResumedStream(CHAT, request)
    assert "seed" not in json.loads(stream.body())
    first = events_of(server, CHAT, stream.body())
    for event in first[:4]:
        stream.feed(event)
    seed = json.loads(first[0][6:])["seed"]
    assert json.loads(stream.body())["seed"] == seed
    rest = b"".join(stream.feed(event) for event in events_of(server, CHAT, stream.body()))
    assert joined(b"".join(first[:4]) + rest)["text"] == joined(b"".join(first))["text"]


def test_nothing_is_sent_twice_where_an_answer_cannot_be_gone_on_with(server):
    for path, request in ((CHAT, {**SAMPLED, "n": 2}), (TEXT, {"prompt": ["a", "b"]}), (TEXT, {"prompt": "a", "echo": True}),
                          ("/v1/messages", {**SAMPLED, "max_tokens": 9})):
        stream = ResumedStream(path, request)
        assert stream.can_go_on, "nothing was sent yet"
        stream.feed(b'data: {"id": "x", "choices": []}\n\n')
        assert not stream.can_go_on


def test_text_without_its_tokens_is_not_gone_on_with():
    """Some routers drop return_token_ids."""
    stream = ResumedStream(CHAT, SAMPLED)
    stream.feed(b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')
    assert stream.can_go_on
    stream.feed(b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"One"}}]}\n\n')
    assert not stream.can_go_on


def test_errors_of_the_server_are_cuts_and_those_of_the_request_are_answers():
    stream = ResumedStream(CHAT, SAMPLED)
    leaving = b'data: {"error": {"message": "bye", "code": "shutting_down"}}\n\n'
    with pytest.raises(Cut):
        stream.feed(leaving)
    wrong = b'data: {"error": {"message": "no form", "code": 400}}\n\n'
    assert stream.feed(wrong) == wrong
    assert stream.feed(b": comment\n\n") == b": comment\n\n"


def test_text_that_looks_like_token_ids_is_not_touched():
    stream = ResumedStream(CHAT, SAMPLED)
    event = b'data: ' + json.dumps({"id": "x", "choices": [{"index": 0, "delta": {"content": ',"token_ids":[1,2]'},
                                                            "token_ids": [5, 6], "finish_reason": None}]},
                                   separators=(",", ":")).encode() + b"\n\n"
    shown = json.loads(stream.feed(event)[6:])
    assert shown["choices"][0]["delta"]["content"] == ',"token_ids":[1,2]'
    assert "token_ids" not in shown["choices"][0] and stream.num_tokens == 2


def chat(*texts, **fields):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)], **fields}


def test_prompts_that_begin_alike_have_keys_that_begin_alike():
    first = prefix_keys(chat("Tell me a story", temperature=1))
    later = prefix_keys(chat("Tell me a story", "Once", "And then?"))
    assert len(first) == 1 and len(later) == 3 and later[:1] == first
    assert prefix_keys(chat("Tell me another")) != first
    long = prefix_keys({"prompt": "x" * 1000})
    assert prefix_keys({"prompt": "x" * 1000 + "y"})[:3] == long[:3]
    assert prefix_keys(chat("Tell me a story", cache_salt="mine")) != first
    assert prefix_keys(chat("Tell me a story", tools=[{"type": "function"}]))[0] != first[0]
    assert prefix_keys({"token_ids": [1, 2]}) and prefix_keys({"input": "x"}) and prefix_keys({"system": "y"})
    assert len(prefix_keys({"prompt": "x" * 10_000_000})) == 256
    assert prefix_keys(None) == prefix_keys([]) == prefix_keys({}) == []


def test_the_index_knows_the_longest_beginning_and_forgets_the_oldest():
    index = PrefixIndex(max_keys=5)
    index.add([1, 2, 3], "a")
    index.add([1, 2, 9], "b")
    assert index.longest([1, 2, 3, 4], {"a", "b"}) == ("a", 3)
    assert index.longest([1, 2, 8], {"a", "b"}) == ("b", 2)
    assert index.longest([1, 2, 9], {"a"}) == (None, 0), "b has them all by now"
    assert index.longest([7], {"a", "b"}) == (None, 0)
    index.add([10, 11], "c")
    assert len(index) == 5
    assert index.longest([1, 2, 3], {"a", "b", "c"})[1] == 2, "3 was used longest ago"


def test_without_ray_the_command_says_what_to_install(package_dir):
    result = subprocess.run([sys.executable, "-c",
                             "import sys; sys.modules['ray'] = None; sys.argv = ['lapidary.ray'];"
                             "from lapidary.ray.__main__ import main; main()"],
                            env={**os.environ, "PYTHONPATH": package_dir}, capture_output=True, text=True)
    assert result.returncode == 1 and "pip install 'lapidary[ray]'" in result.stderr
    assert "Traceback" not in result.stderr
