"""Request fields one by one through OpenAI's client: each must change, or leave, what it says."""

import asyncio
import json

import httpx
import pytest

NO_THOUGHT = {"100": -100}  # <|channel>: a random model would think to the end
OPTIONS = dict(model="tiny", max_tokens=24, seed=7, temperature=1.0)


def text_of(client, **fields):
    return client.completions.create(**{**OPTIONS, "prompt": "Once", **fields}).choices[0].text


def tokens_of(client, **fields):
    options = {**OPTIONS, "prompt": "Once", "logprobs": 0, "extra_body": {"ignore_eos": True}, **fields}
    return client.completions.create(**options).choices[0].logprobs.tokens


@pytest.mark.parametrize("narrow", [
    {"temperature": 0}, {"top_p": 1e-6}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1.0}}])
def test_each_way_to_the_likeliest_token_is_greedy(client, narrow):
    greedy = text_of(client, temperature=0)
    assert text_of(client, **{"temperature": 1.0, "seed": 11, **narrow}) == greedy
    assert text_of(client, seed=11) != greedy, "without it the text differs"


def test_penalties_make_repetition_rarer(client):
    # Forty candidates of nearly equal weight, so that a penalty decides among them.
    bias = {"logit_bias": {str(token): 90 for token in range(300, 340)}}
    num_distinct = len(set(tokens_of(client, temperature=0, **bias)))
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0},
                    {"extra_body": {"repetition_penalty": 2.0, "ignore_eos": True}}):
        assert len(set(tokens_of(client, temperature=0, **bias, **penalty))) > num_distinct, penalty


def test_ignore_eos(client):
    bias = {"1": 100}
    ended = client.completions.create(**OPTIONS, prompt="x", logit_bias=bias)
    assert (ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("stop", 1)
    forced = client.completions.create(**OPTIONS, prompt="x", logit_bias=bias, extra_body={"ignore_eos": True})
    assert (forced.choices[0].finish_reason, forced.usage.completion_tokens) == ("length", 24)


def test_skip_special_tokens(client):
    options = dict(logit_bias={"105": 100}, temperature=0, max_tokens=2)
    assert text_of(client, **options) == ""
    assert text_of(client, **options, extra_body={"skip_special_tokens": False}) == "<|turn><|turn>"


def test_add_special_tokens_puts_bos_in_front(client):
    def prompt_tokens(**fields):
        return client.completions.create(**OPTIONS, prompt="Once", **fields).usage.prompt_tokens
    assert prompt_tokens() == prompt_tokens(extra_body={"add_special_tokens": False}) + 1


def test_stop_may_be_a_string_a_list_or_null(client):
    text = text_of(client)
    stop = text[len(text) // 2:][:2]
    expected = text[:text.index(stop)]
    assert text_of(client, stop=stop) == text_of(client, stop=[stop]) == expected
    assert text_of(client, stop=None) == text


def test_top_logprobs_of_a_text_completion_hold_the_token_itself(client):
    logprobs = client.completions.create(**OPTIONS, prompt="x", logprobs=2).choices[0].logprobs
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert 1 <= len(top) <= 3 and token in top
        assert top[token] == pytest.approx(value) or "�" in token


def test_parallel_tool_calls_and_tool_choice_are_taken(client, hello):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    for fields in ({"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": False}):
        response = client.chat.completions.create(model="tiny", messages=hello, tools=tools, max_tokens=3, seed=1,
                                                  **fields)
        assert response.usage.completion_tokens <= 3
    with_tools = client.chat.completions.create(model="tiny", messages=hello, tools=tools, max_tokens=1)
    without = client.chat.completions.create(model="tiny", messages=hello, tools=tools, max_tokens=1,
                                             tool_choice="none")
    assert without.usage.prompt_tokens < with_tools.usage.prompt_tokens, "the tools are left out of the prompt"


def test_fields_without_meaning_here_are_accepted(client, hello):
    response = client.chat.completions.create(
        model="tiny", messages=hello, max_tokens=2, user="u", metadata={"a": "b"}, store=False,
        service_tier="auto", response_format={"type": "text"}, extra_headers={"X-Request-Id": "1"})
    assert response.choices


@pytest.mark.parametrize("field", [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["ab", 12]}}}},
    {"extra_body": {"guided_json": {"enum": ["ab", 12]}}},
    {"extra_body": {"structured_outputs": {"regex": "\"ab\"|12"}}},
    {"extra_body": {"guided_choice": ["\"ab\"", "12"]}},
    {"extra_body": {"grammar": 'root ::= "12" | "\\"ab\\""'}}])
def test_answers_have_the_form_that_was_asked_for(client, hello, field):
    for seed in range(4):
        choice = client.chat.completions.create(model="tiny", messages=hello, max_tokens=20, seed=seed,
                                                temperature=2.0, logit_bias=NO_THOUGHT, **field).choices[0]
        assert choice.finish_reason == "stop"
        assert json.loads(choice.message.content) in ("ab", 12)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_demanded_calls_are_made_and_fit_their_schema(client, hello, choice):
    schema = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 1, "maximum": 3}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    answer = client.chat.completions.create(model="tiny", messages=hello, max_tokens=100, tools=tools, tool_choice=choice,
                                            parallel_tool_calls=False, temperature=2.0, seed=3,
                                            logit_bias=NO_THOUGHT).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name == "f" and json.loads(call.function.arguments)["x"] in (1, 2, 3)


def test_async_client_whole_streamed_and_failing(server, hello):
    import openai

    async def run():
        async with server.async_client() as client:
            options = dict(model="tiny", messages=hello, max_tokens=12, seed=2, temperature=1.0)
            whole = await client.chat.completions.create(**options)
            stream = await client.chat.completions.create(**options, stream=True,
                                                          stream_options={"include_usage": True})
            text, usage = "", None
            async for chunk in stream:
                usage = chunk.usage or usage
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
            assert text == (whole.choices[0].message.content or "")
            assert usage.completion_tokens == whole.usage.completion_tokens
            plain = await client.completions.create(model="tiny", prompt="x", max_tokens=4, echo=True, logprobs=1)
            assert plain.choices[0].text.startswith("x")
            parts = [chunk.choices[0].text async for chunk in
                     await client.completions.create(model="tiny", prompt="x", max_tokens=4, seed=1, stream=True)]
            assert len(parts) >= 1
            assert [model.id async for model in client.models.list()] == ["tiny"]
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(**{**options, "temperature": -1})
    asyncio.run(run())


def test_head_answers_like_get_without_a_body(server):
    for path in ("/health", "/version", "/v1/models", "/v1/models/tiny", "/metrics"):
        head, get = httpx.head(server.url + path), httpx.get(server.url + path)
        assert (head.status_code, head.text) == (200, "")
        assert head.headers["content-type"] == get.headers["content-type"]
        assert int(head.headers["content-length"]) > 0
    refused = httpx.head(server.url + "/v1/completions")
    assert refused.status_code == 405 and refused.headers["allow"] == "POST, OPTIONS"


def test_whole_floats_are_integers_and_an_empty_stop_is_none(server):
    body = {"prompt": "Once", "max_tokens": 5.0, "top_k": 3.0, "seed": 7.0, "temperature": 1}
    as_floats = server.post("/v1/completions", json={**body, "stop": ""})
    assert as_floats.status_code == 200, as_floats.text
    as_integers = server.post("/v1/completions", json={**body, "max_tokens": 5, "top_k": 3, "seed": 7, "stop": [""]})
    assert as_floats.json()["choices"][0]["text"] == as_integers.json()["choices"][0]["text"]
    for wrong in (2.5, 1e300):
        assert "integer" in server.post("/v1/completions", json={**body, "max_tokens": wrong}).text
    ids = server.post("/v1/completions", json={**body, "prompt": [2, 5, 9], "allowed_token_ids": [7, 8]})
    as_floats = server.post("/v1/completions", json={**body, "prompt": [2.0, 5.0, 9.0], "allowed_token_ids": [7.0, 8.0]})
    assert as_floats.status_code == 200, as_floats.text
    assert as_floats.json()["choices"] == ids.json()["choices"]
    for wrong in ([2, 5.5], [2, -5.0], [2, 1e10]):
        assert server.post("/v1/completions", json={**body, "prompt": wrong}).status_code == 400


def test_a_text_completion_stops_at_sixteen_tokens_unless_asked(server):
    body = {"prompt": "Once", "ignore_eos": True}
    assert server.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 16
    assert server.post("/v1/completions", json={**body, "max_tokens": 20}).json()["usage"]["completion_tokens"] == 20


def test_broken_json_is_shown_its_place(server):
    for body, place in (('{"prompt": "x",}', "line 1, column 16"), ('{\n  "prompt": nope}', "line 2, column 14"),
                        ('{"prompt": "x"', "line 1, column 15")):
        response = server.post("/v1/completions", content=body)
        assert response.status_code == 400
        assert place in response.json()["error"]["message"], response.text


def test_token_ids_come_back_when_asked_for(server):
    body = {"prompt": "Once", "max_tokens": 5, "return_token_ids": True, "ignore_eos": True,
            "skip_special_tokens": False, "logit_bias": {"300": 100, "301": 100, "106": 100}}
    whole = server.post("/v1/completions", json=body).json()["choices"][0]
    assert whole["prompt_token_ids"] == server.post("/tokenize", json={"prompt": "Once"}).json()["tokens"]
    assert len(whole["token_ids"]) == 5
    assert server.post("/detokenize", json={"tokens": whole["token_ids"]}).json()["prompt"] == whole["text"]
    chat = server.post("/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "return_token_ids": True}).json()
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert len(chat["choices"][0]["token_ids"]) == chat["usage"]["completion_tokens"]


def test_only_allowed_tokens_are_drawn(server):
    allowed = [300, 301, 302]
    body = {"prompt": "Once", "max_tokens": 8, "allowed_token_ids": allowed, "return_token_ids": True, "seed": 3}
    drawn = server.post("/v1/completions", json=body).json()["choices"][0]["token_ids"]
    assert len(drawn) == 8 and set(drawn) <= set(allowed)
    for wrong in ([], [1 << 30], "x"):
        refused = server.post("/v1/completions", json={**body, "allowed_token_ids": wrong})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "allowed_token_ids", refused.text


def test_nothing_stops_an_answer_before_min_tokens(server):
    body = {"prompt": "x", "max_tokens": 12, "logit_bias": {"1": 100}, "return_token_ids": True, "seed": 3}

    def answer(**fields):
        return server.post("/v1/completions", json={**body, **fields}).json()["choices"][0]
    assert answer()["token_ids"] == [1]
    later = answer(min_tokens=5)
    assert (len(later["token_ids"]), later["finish_reason"]) == (6, "stop") and 1 not in later["token_ids"][:5]
    # A stop token of the request's own, and a stop string.
    own = answer(min_tokens=5, logit_bias={"300": 100}, stop_token_ids=[300])
    assert own["token_ids"].index(300) == 5 and own["finish_reason"] == "stop"
    letters = {"logit_bias": {}, "allowed_token_ids": server.post("/tokenize", json={
        "prompt": "q", "add_special_tokens": False}).json()["tokens"], "stop": ["q"]}
    assert answer(**letters)["text"] == ""
    assert answer(**letters, min_tokens=5)["text"] == "q" * 5
    refused = server.post("/v1/completions", json={**body, "min_tokens": 13})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "min_tokens", refused.text
    short = server.post("/v1/completions", json={"prompt": "x", "min_tokens": 17})
    assert short.status_code == 400, "16 are the most unless max_tokens says more"


def test_priorities_are_taken_where_the_server_says_so(server, start):
    body = {"prompt": "x", "max_tokens": 2}
    assert server.post("/v1/completions", json={**body, "priority": 0}).status_code == 200
    refused = server.post("/v1/completions", json={**body, "priority": -1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority", refused.text
    ordered = start("--scheduling-policy", "priority")
    assert ordered.post("/v1/completions", json={**body, "priority": -1}).status_code == 200


def test_bad_words_are_not_said(server):
    def ids(text):
        return server.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    body = {"prompt": "Once", "max_tokens": 24, "temperature": 50, "seed": 3,
            "allowed_token_ids": ids("q") + ids("y") + ids("z"), "ignore_eos": True}

    def text(**fields):
        return server.post("/v1/completions", json={**body, **fields}).json()["choices"][0]["text"]
    assert "qz" in text() and set(text()) == {"q", "y", "z"}
    assert text(bad_words=["q", "y"]) == "z" * 24
    apart = text(bad_words=["qz"])
    assert "qz" not in apart and set(apart) == {"q", "y", "z"}
    for wrong in ("q", [1], [""], ["q" * 2000], ["q"] * 2000):
        refused = server.post("/v1/completions", json={**body, "bad_words": wrong})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "bad_words", refused.text


def test_a_message_can_be_gone_on_with(server, hello):
    begun = [*hello, {"role": "assistant", "content": "Well, hello"}]

    def tokens(**fields):
        return server.post("/tokenize", json={"messages": begun, **fields}).json()["tokens"]
    continued = tokens(continue_final_message=True)
    closed = tokens(add_generation_prompt=False)
    assert closed[:len(continued)] == continued and len(closed) > len(continued)
    assert server.post("/detokenize", json={"tokens": continued}).json()["prompt"].endswith("Well, hello")
    answer = server.post("/v1/chat/completions", json={"messages": begun, "max_tokens": 2,
                                                       "continue_final_message": True})
    assert answer.json()["usage"]["prompt_tokens"] == len(continued)
    for messages, fields in ((hello, {}), (begun, {"add_generation_prompt": True})):
        refused = server.post("/v1/chat/completions",
                              json={"messages": messages, "continue_final_message": True, **fields})
        assert refused.status_code == 400 and "continue_final_message" in refused.json()["error"]["message"]


@pytest.mark.parametrize("fields, thinks", [
    ({}, False), ({"reasoning_effort": "none"}, False), ({"reasoning_effort": "minimal"}, False),
    ({"reasoning_effort": "low"}, True), ({"reasoning_effort": "high"}, True), ({"reasoning": {"effort": "high"}}, True),
    ({"reasoning": {"enabled": False}}, False), ({"thinking": {"type": "enabled", "budget_tokens": 99}}, True),
    ({"thinking": {"type": "disabled"}}, False),
    ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, False)])
def test_every_way_to_ask_for_thinking(server, hello, fields, thinks):
    tokens = server.post("/tokenize", json={"messages": hello, **fields}).json()["tokens"]
    assert (98 in tokens) == thinks  # <|think|>


def test_reasoning_tokens_are_counted(client, hello):
    def usage(**fields):
        return client.chat.completions.create(model="tiny", messages=hello, max_tokens=6, **fields).usage
    assert usage(logit_bias={"300": 100}).completion_tokens_details.reasoning_tokens == 0
    assert usage(logit_bias={"100": 100}).completion_tokens_details.reasoning_tokens == 6  # <|channel>


def test_more_answers_than_may_wait_can_never_be_had(start):
    server = start("--max-queue", "3")
    for body in ({"prompt": "x", "n": 4}, {"prompt": ["x", "y"], "n": 2}):
        refused = server.post("/v1/completions", json={**body, "max_tokens": 1})
        assert refused.status_code == 400 and "--max-queue" in refused.json()["error"]["message"]


def test_a_model_is_found_by_its_encoded_name(start):
    server = start("--served-model-name", "org/model")
    for path in ("/v1/models/org/model", "/v1/models/org%2Fmodel", "/v1/models/org%2fmodel"):
        response = httpx.get(httpx.URL(server.url).copy_with(raw_path=path.encode()))
        assert response.json()["id"] == "org/model", path


def test_a_preflight_allows_the_headers_it_asks_for(start):
    server = start("--allowed-origins", "https://app.example")
    asked = "authorization,content-type,x-stainless-lang,x-stainless-os"
    response = httpx.options(server.url + "/v1/chat/completions", headers={
        "Origin": "https://app.example", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": asked})
    assert response.headers["access-control-allow-headers"] == asked
