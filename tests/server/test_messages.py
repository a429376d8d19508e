"""POST /v1/messages, through Anthropic's own client and as plain events."""

import json

import anthropic
import httpx
import pytest

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0}  # which their client sends no more


@pytest.fixture(scope="module")
def messages(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client.messages


def test_a_message_has_what_clients_read(messages):
    message = messages.create(model="tiny", max_tokens=7, messages=HELLO, system="Be brief.", extra_body=GREEDY)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert [block.type for block in message.content] == ["text"]
    assert message.usage.output_tokens == 7
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 5


def test_it_says_what_a_chat_says(client, messages):
    chat = client.chat.completions.create(model="tiny", max_tokens=20, temperature=0, messages=[
        {"role": "system", "content": "Be brief."}, *HELLO])
    blocks = [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]
    for given, system in ((HELLO, "Be brief."),
                          ([{"role": "user", "content": blocks}], [{"type": "text", "text": "Be brief."}])):
        message = messages.create(model="tiny", max_tokens=20, extra_body=GREEDY, messages=given, system=system)
        assert message.content[0].text == chat.choices[0].message.content


def test_events_joined_are_the_whole(server, messages):
    whole = messages.create(model="tiny", max_tokens=9, extra_body=GREEDY, messages=HELLO)
    with messages.stream(model="tiny", max_tokens=9, extra_body=GREEDY, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert [block.text for block in final.content] == [block.text for block in whole.content]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 9)

    response = server.post("/v1/messages", json={"max_tokens": 3, "messages": HELLO, "stream": True})
    names = [line.removeprefix("event: ") for line in response.text.split("\n") if line.startswith("event: ")]
    datas = [json.loads(line[6:]) for line in response.text.split("\n") if line.startswith("data: ")]
    assert names == [data["type"] for data in datas]
    assert (names[0], names[1]) == ("message_start", "content_block_start")
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stop_sequences_end_it_and_are_named(messages):
    text = messages.create(model="tiny", max_tokens=30, extra_body=GREEDY, messages=HELLO).content[0].text
    stop = text[8:10]
    message = messages.create(model="tiny", max_tokens=30, extra_body=GREEDY, messages=HELLO, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[:text.index(stop)]


def test_tokens_are_counted_as_they_are_used(messages):
    tools = [{"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}]
    conversation = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""},
                                          {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                      "content": [{"type": "text", "text": "5"}]}]}]
    counted = messages.count_tokens(model="tiny", messages=conversation, tools=tools, system="Be brief.")
    used = messages.create(model="tiny", max_tokens=1, messages=conversation, tools=tools, system="Be brief.").usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_an_answer_that_is_begun_is_gone_on_with(messages):
    begun = [*HELLO, {"role": "assistant", "content": "Well, hello"}]
    assert (messages.count_tokens(model="tiny", messages=begun).input_tokens
            < messages.count_tokens(model="tiny", messages=[*begun, *HELLO]).input_tokens)
    assert messages.create(model="tiny", max_tokens=3, messages=begun).usage.output_tokens == 3


def test_thinking_is_asked_for(messages):
    def count(**options):
        return messages.count_tokens(model="tiny", messages=HELLO, **options).input_tokens
    assert count(thinking={"type": "enabled", "budget_tokens": 1024}) > count()
    assert count(thinking={"type": "disabled"}) == count()


@pytest.mark.parametrize("body, words", [
    ({"messages": HELLO}, "max_tokens"),
    ({"max_tokens": 5}, "messages"),
    ({"max_tokens": 5, "messages": [{"role": "tool", "content": "x"}]}, "role"),
    ({"max_tokens": 5, "messages": HELLO, "tools": [{"name": "x"}]}, "input_schema"),
    ({"max_tokens": 5, "messages": HELLO, "system": 7}, "system"),
    ({"max_tokens": 5, "messages": [{"role": "user", "content": "hello " * 2000}]}, "context"),
])
def test_errors_have_the_shape_of_this_api(server, body, words):
    response = server.post("/v1/messages", json=body)
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert words in response.json()["error"]["message"]


def test_more_tokens_than_the_context_leaves_are_as_many_as_it_leaves(server):
    stop = server.post("/v1/messages", json={"max_tokens": 10**6, "messages": HELLO, "ignore_eos": True, **GREEDY}).json()
    usage = stop["usage"]
    used = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"]
    assert (stop["stop_reason"], used) == ("max_tokens", 1024)


def test_a_billing_line_that_changes_leaves_the_prefix_cache_its_prompt(server):
    rules = "Be brief, and say nothing that is not so. " * 10

    def ask(number):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number};"},
                  {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}}]
        return server.post("/v1/messages", json={"max_tokens": 1, "system": system, "messages": HELLO}).json()["usage"]

    first, second = ask("3f2a1"), ask("99b07")
    tokens = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["input_tokens"] + second["cache_read_input_tokens"] == tokens
    assert second["cache_read_input_tokens"] > tokens / 2


def test_documents_of_text_are_read(messages):
    document = {"type": "document", "title": "Report",
                "source": {"type": "text", "media_type": "text/plain", "data": "All is well."}}
    with_document = [{"role": "user", "content": [document, {"type": "text", "text": "Sum up."}]}]
    without = [{"role": "user", "content": [{"type": "text", "text": "Sum up."}]}]
    assert (messages.count_tokens(model="tiny", messages=with_document).input_tokens
            > messages.count_tokens(model="tiny", messages=without).input_tokens + 10)


REFUSED_BY_THEIR_HEADS = [
    ("POST", "/v1/messages", {}, 401),
    ("POST", "/v1/messages", {"Host": "evil.example"}, 403),
    ("POST", "/v1/messages/unknown", {"x-api-key": "sesame"}, 404),
    ("GET", "/v1/messages", {"x-api-key": "sesame"}, 405),
    ("POST", "/v1/messages", {"Content-Encoding": "gzip"}, 415),
]


def test_what_is_refused_by_its_head_has_that_shape_too(start):
    server = start("--api-key", "sesame")
    for method, path, headers, status in REFUSED_BY_THEIR_HEADS:
        response = httpx.request(method, server.url + path, headers=headers)
        assert response.status_code == status
        assert response.json()["type"] == "error", status
        assert response.json()["error"]["message"]


def test_a_body_that_is_too_large_is_told_so_in_the_shape_of_its_api(start):
    server = start("--max-body-bytes", "1000")
    for path, message in (("/v1/messages", lambda error: error["error"]["message"]), ("/api/chat", lambda error: error["error"]),
                          ("/v1/responses", lambda error: error["error"]["message"])):
        refused = server.post(path, content=b" " * 2000)
        assert refused.status_code == 413
        assert "the body exceeds 1000 bytes" in message(refused.json()), path


def test_the_key_comes_in_their_header(start):
    server = start("--api-key", "sesame")
    with anthropic.Anthropic(base_url=server.url, api_key="sesame", max_retries=0) as client:
        assert client.messages.create(model="tiny", max_tokens=1, messages=HELLO).content
    with anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(model="tiny", max_tokens=1, messages=HELLO)
