"""POST /v1/chat/completions, field by field."""

import asyncio
import math

import pytest


def join(stream):
    """A stream's chunks put together as a client does: by choice, the text and the end."""
    choices, usage = {}, None
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk"
        if chunk.usage:
            usage = chunk.usage
            assert chunk.choices == []
        for choice in chunk.choices:
            state = choices.setdefault(
                choice.index, {"content": "", "reasoning": "", "logprobs": [], "finish": None, "roles": []})
            assert state["finish"] is None, "nothing comes after the finish reason"
            state["content"] += choice.delta.content or ""
            state["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            if choice.delta.role:
                state["roles"].append(choice.delta.role)
            if choice.logprobs:
                state["logprobs"] += choice.logprobs.content
            state["finish"] = choice.finish_reason
    return choices, usage


def test_response_has_every_field(client, hello):
    response = client.chat.completions.create(model="tiny", messages=hello, max_tokens=7, seed=1)
    assert response.id.startswith("chatcmpl-")
    assert response.object == "chat.completion"
    assert response.model == "tiny"
    assert response.created > 0
    [choice] = response.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert response.usage.completion_tokens == 7
    assert response.usage.prompt_tokens > 5
    assert response.usage.total_tokens == response.usage.prompt_tokens + 7


def test_seed_repeats_and_another_seed_differs(client, hello):
    def answer(seed):
        return client.chat.completions.create(
            model="tiny", messages=hello, max_tokens=20, seed=seed, temperature=1.0).choices[0].message.content
    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_without_a_seed_answers_differ(client, hello):
    answers = {client.chat.completions.create(model="tiny", messages=hello, max_tokens=20,
                                              temperature=1.0).choices[0].message.content for _ in range(3)}
    assert len(answers) > 1


@pytest.mark.parametrize("seed", range(6))
def test_stream_equals_whole(client, hello, seed):
    options = dict(model="tiny", messages=hello, max_tokens=60, seed=seed, temperature=1.5,
                   logprobs=True, top_logprobs=2, n=2)
    whole = client.chat.completions.create(**options)
    choices, usage = join(client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}))
    assert sorted(choices) == [0, 1]
    for choice in whole.choices:
        state = choices[choice.index]
        assert state["roles"] == ["assistant"]
        assert state["content"] == (choice.message.content or "")
        assert state["reasoning"] == (getattr(choice.message, "reasoning_content", None) or "")
        assert state["finish"] == choice.finish_reason
        assert state["logprobs"] == choice.logprobs.content
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_role_comes_with_the_first_token_even_if_that_shows_nothing(client, hello):
    chunks = list(client.chat.completions.create(model="tiny", messages=hello, max_tokens=5, logit_bias={"0": 100},
                                                 stream=True, stream_options={"include_usage": True,
                                                                              "continuous_usage_stats": True}))
    assert [chunk.choices[0].delta.role for chunk in chunks[:-1]] == ["assistant", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, "length"]
    assert chunks[0].usage.completion_tokens < 5, "not only at the end"


def test_continuous_usage_counts_up_to_the_whole(client, hello):
    chunks = list(client.chat.completions.create(
        model="tiny", messages=hello, max_tokens=30, seed=1, stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True}))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] <= 30
    assert counts[-2] == counts[-1], "the last chunk with a choice has the whole count"
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {chunks[-1].usage.prompt_tokens}


def test_no_usage_chunk_unless_asked(client, hello):
    _, usage = join(client.chat.completions.create(model="tiny", messages=hello, max_tokens=3, stream=True))
    assert usage is None


def test_choices_of_n_have_their_own_seeds(client, hello):
    response = client.chat.completions.create(model="tiny", messages=hello, max_tokens=20, n=3, seed=5,
                                              temperature=1.0)
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in response.choices}) == 3
    single = client.chat.completions.create(model="tiny", messages=hello, max_tokens=20, seed=5, temperature=1.0)
    assert single.choices[0].message.content == response.choices[0].message.content
    assert response.usage.prompt_tokens == single.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_cuts_the_text(client, hello, stream):
    options = dict(model="tiny", messages=hello, max_tokens=30, seed=3, temperature=1.0)
    text = client.chat.completions.create(**options).choices[0].message.content
    stop = text[len(text) // 2:][:3]
    expected = text[:text.index(stop)]
    if stream:
        choices, usage = join(client.chat.completions.create(
            **options, stop=[stop, "never to be found"], stream=True, stream_options={"include_usage": True}))
        content, finish = choices[0]["content"], choices[0]["finish"]
    else:
        response = client.chat.completions.create(**options, stop=stop)
        content, finish, usage = (response.choices[0].message.content, response.choices[0].finish_reason,
                                  response.usage)
        assert response.choices[0].stop_reason == stop
    assert (content, finish) == (expected, "stop")
    assert 0 < usage.completion_tokens <= 30


def test_stop_token_ends_and_is_not_shown(client, hello):
    response = client.chat.completions.create(model="tiny", messages=hello, max_tokens=30, temperature=0,
                                              logit_bias={"300": 100}, extra_body={"stop_token_ids": [7, 300]})
    [choice] = response.choices
    assert (choice.finish_reason, choice.stop_reason, choice.message.content) == ("stop", 300, "")
    assert response.usage.completion_tokens == 1


def test_logprobs_are_a_distribution(client, hello):
    response = client.chat.completions.create(model="tiny", messages=hello, max_tokens=5, seed=1, logprobs=True,
                                              top_logprobs=20, temperature=0)
    tokens = response.choices[0].logprobs.content
    assert len(tokens) == 5
    for token in tokens:
        assert len(token.top_logprobs) == 20
        assert token.logprob <= 0
        tops = [top.logprob for top in token.top_logprobs]
        assert tops == sorted(tops, reverse=True)
        assert sum(math.exp(logprob) for logprob in tops) <= 1.001
        assert token.logprob == tops[0], "greedy takes the likeliest"
        assert bytes(token.bytes).decode(errors="replace") == token.token


def test_logit_bias_decides(client, hello):
    response = client.chat.completions.create(model="tiny", messages=hello, max_tokens=4, temperature=0,
                                              logit_bias={"300": 100}, logprobs=True)
    tokens = {token.token for token in response.choices[0].logprobs.content}
    assert len(tokens) == 1


def test_max_completion_tokens_and_rest_of_the_context(client, hello):
    response = client.chat.completions.create(model="tiny", messages=hello, max_completion_tokens=2, seed=1)
    assert response.usage.completion_tokens == 2
    response = client.chat.completions.create(model="tiny", messages=hello, seed=1, temperature=1.0,
                                              extra_body={"ignore_eos": True})
    assert response.usage.total_tokens == 1024
    assert response.choices[0].finish_reason == "length"


def test_messages_of_all_roles_are_taken(client):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]
    tools = [{"type": "function", "function": {
        "name": "add", "description": "Adds", "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}]
    response = client.chat.completions.create(model="tiny", messages=messages, tools=tools, max_tokens=5,
                                              extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert response.usage.completion_tokens <= 5


def test_thinking_switch_reaches_the_template(client, hello):
    def tokens(**kwargs):
        return client.post("/../tokenize", body={"messages": hello, **kwargs}, cast_to=object)["tokens"]
    assert tokens() != tokens(chat_template_kwargs={"enable_thinking": True})
    assert 98 in tokens(chat_template_kwargs={"enable_thinking": True})


def test_second_turn_finds_the_first_in_the_cache(client):
    messages = [{"role": "user", "content": "Tell me about stones, " * 10}]
    first = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, seed=1)
    messages += [{"role": "assistant", "content": "Stones are hard."}, {"role": "user", "content": "More"}]
    second = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, seed=1)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 2


def test_hundred_streams_at_once(server, hello):
    async def one(client, seed):
        stream = await client.chat.completions.create(model="tiny", messages=hello, max_tokens=10, seed=seed,
                                                      stream=True, extra_body={"ignore_eos": True})
        return join([chunk async for chunk in stream])[0][0]

    async def run():
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, seed % 10) for seed in range(100)))

    results = asyncio.run(run())
    assert all(result["finish"] == "length" for result in results)
    for seed in range(10):
        assert len({result["content"] for result in results[seed::10]}) == 1, "alone or among others: the same"
    server.wait_until_idle()
