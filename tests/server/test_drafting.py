"""A server that drafts answers as one that does not, and says how it went. With the bundled pair, whose drafts are good."""

from pathlib import Path

import pytest

PEBBLE = Path(__file__).resolve().parents[2] / "models" / "pebble-e"
ASKED = [{"role": "user", "content": "Tell me what you know about Pebble Valley."}]


@pytest.fixture(scope="module")
def plain(start):
    return start("--device", "cpu", "--no-spec", model=PEBBLE)


@pytest.fixture(scope="module")
def drafted(start):
    return start("--device", "cpu", "--spec-tokens", "3", "--spec-fixed", "--check-kv", model=PEBBLE)


CASES = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1, "seed": 4, "logprobs": True, "top_logprobs": 3},
    "filtered": {"temperature": 0.8, "seed": 5, "top_p": 0.9, "top_k": 30, "min_p": 0.02},
    "penalised": {"temperature": 0.7, "seed": 6, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "biased": {"temperature": 0.9, "seed": 7, "logit_bias": {"300": 3, "301": -4}},
    "stopped": {"temperature": 0, "stop": ["ley", "and"]},
    "three choices": {"temperature": 1, "seed": 8, "n": 3},
}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_answers_are_those_without_drafts(plain, drafted, fields):
    body = {"messages": ASKED, "max_tokens": 60, **fields}
    answers = [server.post("/v1/chat/completions", json=body).json()["choices"] for server in (plain, drafted)]
    assert answers[0] == answers[1]


def test_a_stream_is_the_whole(drafted):
    with drafted.client() as client:
        fields = dict(model="", messages=ASKED, max_tokens=60, temperature=1, seed=9, stop=["ing"])
        whole = client.chat.completions.create(**fields)
        parts = [chunk.choices[0].delta.content or "" for chunk in
                 client.chat.completions.create(**fields, stream=True) if chunk.choices]
    assert "".join(parts) == whole.choices[0].message.content


def test_usage_and_metrics_tell_what_was_drafted(plain, drafted):
    body = {"messages": ASKED, "max_tokens": 60, "temperature": 0}
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
    before = {name: drafted.metric(f"spec_decode_{name}_total") for name in names}
    details = drafted.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens_details"]
    gained = {name: drafted.metric(f"spec_decode_{name}_total") - before[name] for name in names}
    assert details["accepted_prediction_tokens"] == gained["num_accepted_tokens"] > 0
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == gained["num_draft_tokens"]
    assert gained["num_accepted_tokens_per_pos"] == gained["num_accepted_tokens"]
    assert gained["num_draft_tokens"] <= 3 * gained["num_drafts"]
    assert drafted.metric("spec_decode_num_accepted_tokens_per_pos_total", position="2") > 0
    assert drafted.metric("spec_decode_collapsed") == 0
    undrafted = plain.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens_details"]
    assert undrafted == {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


def test_the_bundled_pair_drafts_by_default(start):
    assert "drafting up to 4 tokens a round" in "".join(start("--device", "cpu", model=PEBBLE).log)
