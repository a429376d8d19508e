"""`--device simulated`: the whole server over made-up answers, which keep all promises but to mean something."""

import json
import subprocess

import httpx
import pytest

CHAT = "/v1/chat/completions"
FLAGS = ("--device", "simulated", "--simulate-speed", "100", "--check-kv")
ASK = [{"role": "user", "content": "Which of the lists is the longest?"}]


@pytest.fixture(scope="module")
def simulated(start):
    return start(*FLAGS, model="e2b")


@pytest.fixture(scope="module")
def replica(start):
    """Another one, which cuts prompts into small chunks and runs few sequences at once."""
    return start(*FLAGS, "--simulate", "h200", "--max-num-batched-tokens", "32", "--max-num-seqs", "3", model="e2b")


def chat(server, messages=ASK, **fields):
    response = server.post(CHAT, json={"messages": messages, "max_tokens": 40, "return_token_ids": True, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def test_the_log_says_that_answers_are_made_up(simulated):
    log = "".join(simulated.log)
    assert "answers are made up" in log and "as on an NVIDIA H200, divided by 100" in log


def test_help_says_so_too(request):
    program = request.config.getoption("--lapidary")
    text = subprocess.run([program, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    assert "Answers are made up" in " ".join(text.split())


def test_an_answer_is_words_of_the_tokenizer(simulated):
    answer = chat(simulated)
    words = text_of(answer).split()
    assert len(words) > 10 and all(word.isascii() and word.isalpha() for word in words), words
    ids = answer["choices"][0]["token_ids"]
    again = simulated.post("/tokenize", json={"prompt": text_of(answer), "add_special_tokens": False}).json()
    assert again["tokens"] == [token for token in ids if token != 106]


def test_answers_end_of_themselves_and_with_ignore_eos_they_do_not(simulated):
    ended = [chat(simulated, [{"role": "user", "content": f"Question {idx}"}], max_tokens=900) for idx in range(4)]
    assert "stop" in {answer["choices"][0]["finish_reason"] for answer in ended}
    endless = chat(simulated, max_tokens=900, ignore_eos=True)
    assert endless["choices"][0]["finish_reason"] == "length" and endless["usage"]["completion_tokens"] == 900


def test_replicas_streams_and_samples_agree(simulated, replica):
    expected = text_of(chat(simulated))
    assert text_of(chat(replica)) == expected
    assert text_of(chat(replica, temperature=0.7, seed=5)) == expected
    pieces = []
    with httpx.stream("POST", replica.url + CHAT, timeout=60,
                      json={"messages": ASK, "max_tokens": 40, "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                pieces += [choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"]]
    assert "".join(pieces) == expected
    many = chat(replica, n=5)
    assert [choice["message"]["content"] for choice in many["choices"]] == [expected] * 5
    assert text_of(chat(simulated, [{"role": "user", "content": "Another question"}])) != expected


def test_an_answer_that_was_cut_goes_on_elsewhere(simulated, replica):
    whole = chat(simulated, ignore_eos=True)["choices"][0]
    for cut in (1, 17, 39):
        rest = chat(replica, ignore_eos=True, resume={"token_ids": whole["token_ids"][:cut]})["choices"][0]
        assert rest["token_ids"] == whole["token_ids"][cut:]
        assert whole["message"]["content"].endswith(rest["message"]["content"].strip())


def test_the_next_turn_finds_the_conversation_in_the_cache(simulated):
    messages = [{"role": "user", "content": "Tell me of the number of the list " * 20}]
    first = chat(simulated, messages)
    messages += [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "And then?"}]
    usage = chat(simulated, messages)["usage"]
    known = first["usage"]["total_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= known - 2
    assert simulated.metric("prefix_cache_hits_total") > 0


def test_forms_are_kept(simulated, replica):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"},
                                               "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 5}},
              "required": ["name", "age", "tags"], "additionalProperties": False}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
            "max_tokens": 400}
    answer = chat(simulated, **form)
    person = json.loads(text_of(answer))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert set(person) == {"name", "age", "tags"} and isinstance(person["age"], int)
    assert text_of(chat(replica, **form)) == text_of(answer)
    assert text_of(chat(simulated, structured_outputs={"choice": ["a pebble", "a boulder"]})) in ("a pebble", "a boulder")
    tool = {"type": "function", "function": {"name": "note", "strict": True, "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "maxLength": 20}}, "required": ["text"],
        "additionalProperties": False}}}
    called = chat(simulated, tools=[tool], tool_choice="required", max_tokens=400)["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    assert set(json.loads(called["message"]["tool_calls"][0]["function"]["arguments"])) == {"text"}


def test_tokens_that_a_request_forbids_never_come(simulated):
    ids = chat(simulated)["choices"][0]["token_ids"]
    banned = chat(simulated, logit_bias={str(token): -100 for token in ids})["choices"][0]["token_ids"]
    assert not set(banned) & set(ids)
    allowed = chat(simulated, allowed_token_ids=ids[:3])["choices"][0]["token_ids"]
    assert set(allowed) <= set(ids[:3])
    stopped = chat(simulated, stop=[text_of(chat(simulated)).split()[5]])
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_logprobs_are_there(simulated):
    answer = chat(simulated, logprobs=True, top_logprobs=3)
    for entry in answer["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3 and entry["logprob"] < 0
    echo = simulated.post("/v1/completions", json={"prompt": "the list of the number", "echo": True, "logprobs": 2,
                                                   "max_tokens": 1}).json()
    assert None not in echo["choices"][0]["logprobs"]["token_logprobs"][1:]


def test_many_at_once_leave_nothing_behind(simulated):
    client = httpx.Client(base_url=simulated.url, timeout=60)
    alone = {idx: text_of(chat(simulated, [{"role": "user", "content": f"Number {idx}"}])) for idx in range(3)}
    answers = client.post(CHAT, json={"messages": [{"role": "user", "content": "Number 1"}], "max_tokens": 40, "n": 60})
    assert {choice["message"]["content"] for choice in answers.json()["choices"]} == {alone[1]}
    simulated.wait_until_idle()


@pytest.mark.parametrize("flags,reason", [
    (("--device", "simulated", "--quantization", "q8_0"), "quantisation cannot be simulated"),
    (("--device", "simulated", "--tensor-parallel-size", "2"), "--tensor-parallel-size cannot be simulated"),
    (("--device", "simulated", "--spec-method", "ngram"), "speculative decoding cannot be simulated"),
    (("--device", "cpu", "--load-format", "dummy", "--simulate", "h200"), "add that, or leave it out"),
    (("--device", "simulated", "--simulate", "b200"), "b200 not in"),
])
def test_what_was_not_measured_is_refused(request, flags, reason):
    program = request.config.getoption("--lapidary")
    result = subprocess.run([program, "serve", "e2b", "--port", "0", *flags], capture_output=True, text=True, timeout=60)
    assert result.returncode in (1, 2) and reason in result.stderr, result.stderr


def test_another_model_is_refused_by_the_names_of_those_measured(request):
    program = request.config.getoption("--lapidary")
    result = subprocess.run([program, "serve", "--port", "0", "--device", "simulated"], capture_output=True, text=True,
                            timeout=60)
    assert result.returncode == 1 and "only those of e2b, e4b, 12b, 26b-a4b, 31b" in result.stderr, result.stderr
