"""The prompt given back: `echo`, logprobs of its tokens, `prompt_logprobs`. What evaluation harnesses use."""

import json
import math
import subprocess

import numpy as np
import pytest

PROMPT = "Grüße, 世界! Once upon a time"


@pytest.fixture(scope="session")
def reference(request, server, checkpoint, tmp_path_factory):
    """reference(ids): [len(ids), vocab] log-probabilities, from `lapidary logits`."""
    def logprobs(ids):
        path = tmp_path_factory.mktemp("logits") / "logits.npy"
        subprocess.run([request.config.getoption("--lapidary"), "logits", str(checkpoint), "--ids",
                        ",".join(map(str, ids)), "--output", str(path)], check=True, stderr=subprocess.DEVNULL)
        logits = np.load(path).astype(np.float64).reshape(len(ids), -1)
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logprobs


def tokenize(server, text):
    return server.post("/tokenize", json={"prompt": text}).json()["tokens"]


def check_prompt(logprobs, ids, expected, num_top):
    """The first len(ids) tokens of a completion's logprobs against the reference."""
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    for at in range(1, len(ids)):
        row = expected[at - 1]
        assert logprobs.token_logprobs[at] == pytest.approx(row[ids[at]], abs=2e-5)
        top = logprobs.top_logprobs[at]
        assert 1 <= len(top) <= num_top + 1
        assert max(top.values()) == pytest.approx(row.max() if num_top else row[ids[at]], abs=2e-5)
        assert logprobs.token_logprobs[at] in top.values() or len(top) < num_top + 1


def check_offsets(choice):
    offsets = choice.logprobs.text_offset
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= len(choice.text)
    for token, offset in zip(choice.logprobs.tokens, offsets):
        if "�" not in token and not token.startswith("<"):
            assert choice.text[offset:].startswith(token)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_echo_with_logprobs_is_the_models_own(client, server, reference, max_tokens, num_top):
    ids = tokenize(server, PROMPT)
    response = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=max_tokens, echo=True,
                                         logprobs=num_top, temperature=0, extra_body={"ignore_eos": True})
    [choice] = response.choices
    assert choice.text.startswith(PROMPT)
    assert choice.finish_reason == "length"
    assert response.usage.prompt_tokens == len(ids)
    assert response.usage.completion_tokens == max_tokens
    assert len(choice.logprobs.tokens) == len(ids) + max_tokens
    for field in ("token_logprobs", "top_logprobs", "text_offset"):
        assert len(getattr(choice.logprobs, field)) == len(ids) + max_tokens
    check_prompt(choice.logprobs, ids, reference(ids), num_top)
    check_offsets(choice)
    if max_tokens == 0:
        assert choice.text == PROMPT
    else:
        plain = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=max_tokens, logprobs=num_top,
                                          temperature=0, extra_body={"ignore_eos": True}).choices[0]
        assert choice.text == PROMPT + plain.text
        assert choice.logprobs.token_logprobs[len(ids):] == plain.logprobs.token_logprobs


def test_loglikelihoods_as_a_harness_asks_for_them(client, server, reference):
    """Batches of token ids, one token generated and dropped, sums over the continuation."""
    texts = [("The stone is", " hard"), ("Rivers", " run to the sea, " * 12), ("A", "B")]
    ids = [(tokenize(server, context), tokenize(server, context + rest)) for context, rest in texts]
    response = client.completions.create(model="tiny", prompt=[whole for _, whole in ids], max_tokens=1,
                                         echo=True, logprobs=1, temperature=0, seed=1234)
    for (context, whole), choice in zip(ids, sorted(response.choices, key=lambda choice: choice.index)):
        values = choice.logprobs.token_logprobs[len(context):-1]
        expected = reference(whole)
        assert len(values) == len(whole) - len(context)
        assert sum(values) == pytest.approx(
            sum(expected[at - 1][whole[at]] for at in range(len(context), len(whole))), abs=1e-3)
        for at, (value, top) in enumerate(zip(values, choice.logprobs.top_logprobs[len(context):-1])):
            is_greedy = value == max(top.values())
            assert is_greedy == (expected[len(context) + at - 1].argmax() == whole[len(context) + at])


def test_a_stop_token_has_a_logprob_but_no_text(client, server):
    """Who asks for one token and drops the last logprob must not drop the prompt's last one."""
    ids = tokenize(server, PROMPT)
    for stream in (False, True):
        options = dict(model="tiny", prompt=PROMPT, max_tokens=1, echo=True, logprobs=1, temperature=0,
                       logit_bias={"1": 100})
        response = client.completions.create(**options, stream=stream)
        chunks = list(response) if stream else [response]
        choices = [choice for chunk in chunks for choice in chunk.choices]
        assert "".join(choice.text for choice in choices) == PROMPT
        assert choices[-1].finish_reason == "stop"
        assert sum(len(choice.logprobs.token_logprobs) for choice in choices if choice.logprobs) == len(ids) + 1


def test_long_prompts_are_scored_in_chunks_and_past_the_cache(client, server, reference):
    ids = tokenize(server, "All work and no play. " * 40)[:900]
    options = dict(model="tiny", prompt=ids, max_tokens=0, echo=True, logprobs=0)
    client.completions.create(model="tiny", prompt=ids, max_tokens=2)
    first = client.completions.create(**options)
    second = client.completions.create(**options)
    assert first.choices[0].logprobs == second.choices[0].logprobs
    assert second.usage.prompt_tokens_details.cached_tokens == 0
    check_prompt(first.choices[0].logprobs, ids, reference(ids), 0)


def test_a_prompt_may_fill_the_context(client):
    response = client.completions.create(model="tiny", prompt=[5] * 1024, max_tokens=0, echo=True, logprobs=0)
    assert len(response.choices[0].logprobs.tokens) == 1024


def test_echo_alone_is_the_prompts_text(client, server):
    answer = client.completions.create(model="tiny", prompt=["ab", "<|turn>x"], echo=True, max_tokens=0)
    assert [choice.text for choice in answer.choices] == ["ab", "<|turn>x"]
    assert answer.choices[0].logprobs is None
    ids = server.post("/tokenize", json={"prompt": "xyz", "add_special_tokens": False}).json()["tokens"]
    assert client.completions.create(model="tiny", prompt=ids, echo=True, max_tokens=0).choices[0].text == "xyz"


def test_one_token_has_nothing_before_it(client):
    response = client.completions.create(model="tiny", prompt=[5], echo=True, logprobs=2, max_tokens=0)
    assert response.choices[0].logprobs.token_logprobs == [None]


def test_choices_of_n_echo_alike_and_go_on_apart(client):
    options = dict(model="tiny", prompt="abc", max_tokens=8, n=3, seed=3, temperature=1.0, logprobs=1)
    echoed = client.completions.create(**options, echo=True)
    plain = client.completions.create(**options)
    for with_prompt, without in zip(echoed.choices, plain.choices):
        assert with_prompt.text == "abc" + without.text
        num_prompt = len(with_prompt.logprobs.tokens) - len(without.logprobs.tokens)
        assert with_prompt.logprobs.token_logprobs[:num_prompt] == echoed.choices[0].logprobs.token_logprobs[:num_prompt]
        assert with_prompt.logprobs.token_logprobs[num_prompt:] == without.logprobs.token_logprobs


@pytest.mark.parametrize("max_tokens", [0, 6])
def test_streamed_echo_equals_the_whole(client, max_tokens):
    options = dict(model="tiny", prompt=["abc", PROMPT], max_tokens=max_tokens, seed=4, temperature=1.0, echo=True,
                   logprobs=2)
    whole = client.completions.create(**options)
    texts, logprobs = {}, {}
    for chunk in client.completions.create(**options, stream=True):
        [choice] = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        if choice.logprobs:
            logprobs.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs)
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert logprobs[choice.index] == choice.logprobs.token_logprobs


def test_prompt_logprobs_as_vllm_gives_them(client, server, reference):
    ids = tokenize(server, PROMPT)
    expected = reference(ids)
    response = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1,
                                         extra_body={"prompt_logprobs": 2})
    logprobs = response.choices[0].prompt_logprobs
    assert logprobs[0] is None and len(logprobs) == len(ids)
    assert response.choices[0].logprobs is None and response.choices[0].text != PROMPT
    for at, entry in enumerate(logprobs[1:], 1):
        assert 2 <= len(entry) <= 3
        assert entry[str(ids[at])]["logprob"] == pytest.approx(expected[at - 1][ids[at]], abs=2e-5)
        likeliest = [token for token, value in entry.items() if value["rank"] == 1]
        assert likeliest == [str(expected[at - 1].argmax())]


def test_prompt_logprobs_of_a_chat(client, hello):
    response = client.chat.completions.create(model="tiny", messages=hello, max_tokens=1,
                                              extra_body={"prompt_logprobs": 0})
    assert len(response.prompt_logprobs) == response.usage.prompt_tokens
    assert all(math.isfinite(value["logprob"]) for entry in response.prompt_logprobs[1:]
               for value in entry.values())


@pytest.mark.parametrize("fields,param", [
    ({"max_tokens": 0}, "max_tokens"), ({"echo": "yes"}, "echo"), ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"), ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
])
def test_what_makes_no_sense_is_refused(server, fields, param):
    response = server.post("/v1/completions", content=json.dumps({"prompt": "x", **fields}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
