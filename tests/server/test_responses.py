"""POST /v1/responses, through OpenAI's own client and as plain events."""

import json
import time

import openai
import pytest


def events_of(server, **body):
    """The stream's events; each has its type twice, and a number."""
    response = server.post("/v1/responses", json={"model": "tiny", "stream": True, **body})
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


def test_a_response_has_what_clients_read(client):
    response = client.responses.create(model="tiny", input="Hello", max_output_tokens=7, instructions="Be brief.",
                                       temperature=0, metadata={"a": "b"})
    assert response.id.startswith("resp_")
    assert (response.object, response.model, response.status) == ("response", "tiny", "incomplete")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert [item.type for item in response.output] == ["message"]
    assert response.usage.output_tokens == 7
    assert response.usage.total_tokens == response.usage.input_tokens + 7
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.usage.input_tokens_details.to_dict()["cache_write_tokens"] == 0
    assert (response.instructions, response.max_output_tokens, response.metadata) == ("Be brief.", 7, {"a": "b"})
    assert (response.tools, response.tool_choice, response.error) == ([], "auto", None)


def test_it_says_what_a_chat_says(client):
    chat = client.chat.completions.create(model="tiny", max_tokens=20, temperature=0, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}])
    for given in ("Hello", [{"role": "user", "content": "Hello"}],
                  [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]):
        response = client.responses.create(model="tiny", input=given, instructions="Be brief.", max_output_tokens=20,
                                           temperature=0)
        assert response.output_text == chat.choices[0].message.content


def test_events_joined_are_the_whole(server, client):
    whole = client.responses.create(model="tiny", input="Hello", max_output_tokens=9, temperature=0)
    events = events_of(server, input="Hello", max_output_tokens=9, temperature=0)
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert types[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.incomplete"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == whole.output_text
    assert last["usage"]["output_tokens"] == 9
    assert last["id"] == events[0]["response"]["id"]


def test_the_clients_own_stream_helper_reads_it(client):
    with client.responses.stream(model="tiny", input="Hello", temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text


def test_a_conversation_goes_on_from_a_stored_response(client):
    first = client.responses.create(model="tiny", input="Hello", max_output_tokens=8, temperature=0)
    second = client.responses.create(model="tiny", input="And then?", max_output_tokens=8, temperature=0,
                                     previous_response_id=first.id)
    spelled_out = client.responses.create(model="tiny", max_output_tokens=8, temperature=0, input=[
        {"role": "user", "content": "Hello"}, *[item.to_dict() for item in first.output],
        {"role": "user", "content": "And then?"}])
    assert second.output_text == spelled_out.output_text
    assert second.usage.input_tokens == spelled_out.usage.input_tokens
    assert second.previous_response_id == first.id


def test_what_was_not_stored_is_not_found(client):
    response = client.responses.create(model="tiny", input="Hello", max_output_tokens=2, store=False)
    for id in (response.id, "resp_nothing"):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            client.responses.create(model="tiny", input="Hi", previous_response_id=id)


def test_calls_and_their_results_become_one_conversation(server, client):
    tool = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
    chat = server.post("/tokenize", json={
        "tools": [{"type": "function", "function": tool}],
        "messages": [{"role": "user", "content": "2+3?"},
                     {"role": "assistant", "content": None, "tool_calls": [
                         {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}]},
                     {"role": "tool", "tool_call_id": "c1", "content": "5"}]}).json()
    response = client.responses.create(model="tiny", max_output_tokens=1, tools=[{"type": "function", **tool}], input=[
        {"role": "user", "content": "2+3?"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "5"}])
    assert response.usage.input_tokens == chat["count"]


def test_what_codex_sends_is_answered(server):
    """Its request names tools that it runs itself, and asks for thoughts that only OpenAI can read again."""
    function = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
                "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                               "required": ["command"], "additionalProperties": False}}
    body = {"model": "tiny", "instructions": "You are a coding agent.", "stream": True, "store": False,
            "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
                      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
            "tools": [function, {"type": "web_search", "external_web_access": False},
                      {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}}],
            "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "none", "summary": "auto"},
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "7", "text": {"verbosity": "medium"}}
    response = server.post("/v1/responses", json=body | {"max_output_tokens": 4})
    assert response.status_code == 200, response.text
    assert "event: response.incomplete" in response.text
    deadline = time.monotonic() + 10
    while not any('["web_search","custom"]' in line for line in list(server.log)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stored_response_is_read_listed_and_forgotten(client):
    response = client.responses.create(model="tiny", max_output_tokens=5, temperature=0, input=[
        {"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"},
        {"role": "user", "content": [{"type": "input_text", "text": "Three"}]}])
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    with pytest.raises(openai.BadRequestError, match="not streamed again"):
        client.responses.retrieve(response.id, stream=True)
    items = client.responses.input_items.list(response.id, order="asc", limit=2)
    assert [item.content[0].text for item in items] == ["One", "Two", "Three"], "the client fetches both pages"
    assert [item.content[0].text for item in client.responses.input_items.list(response.id).data] == [
        "Three", "Two", "One"]
    client.responses.delete(response.id)
    for ask in (client.responses.retrieve, client.responses.input_items.list, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not stored here"):
            ask(response.id)
    unstored = client.responses.create(model="tiny", input="Hello", max_output_tokens=1, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_a_streamed_response_is_stored_as_its_last_event_told_it(server, client):
    last = events_of(server, input="Hello", max_output_tokens=4, temperature=0)[-1]["response"]
    assert client.responses.retrieve(last["id"]).to_dict() == last
    [item] = client.responses.input_items.list(last["id"])
    assert (item.role, item.content[0].type, item.content[0].text) == ("user", "input_text", "Hello")


def test_input_tokens_are_those_that_are_used(server, client):
    first = client.responses.create(model="tiny", input="Hello", max_output_tokens=3, temperature=0)
    body = {"model": "tiny", "input": "And then?", "instructions": "Be brief.", "previous_response_id": first.id}
    counted = server.post("/v1/responses/input_tokens", json=body).json()
    used = client.responses.create(**body, max_output_tokens=1).usage.input_tokens
    assert counted == {"object": "response.input_tokens", "input_tokens": used}


@pytest.mark.parametrize("body, param", [
    ({}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"type": "web_search_call"}]}, "input[0]"),
    ({"input": "x", "tools": ["web_search"]}, "tools[0]"),
    ({"input": "x", "include": ["message.output_text.logprobs"]}, "include"),
    ({"input": "x", "top_logprobs": 3}, "top_logprobs"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "reasoning": {"effort": "great"}}, "effort"),
    ({"input": "x", "max_output_tokens": "many"}, "max_completion_tokens"),
])
def test_what_cannot_be_done_is_refused(server, body, param):
    response = server.post("/v1/responses", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
