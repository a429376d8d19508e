"""The model class of lm-evaluation-harness: with the harness if it is installed, else with the little of it that is here."""

import importlib.util
import math
import pathlib
import sys

import pytest

if importlib.util.find_spec("lm_eval") is None:
    sys.path.append(str(pathlib.Path(__file__).parent / "harness_stand_in"))

from lapidary.lm_eval import LapidaryLM, _windows  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402


def instances(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=each, idx=index) for index, each in enumerate(arguments)]


@pytest.fixture(scope="module")
def model(llm):
    return LapidaryLM(llm)


def test_it_is_registered():
    assert get_model("lapidary") is LapidaryLM


def test_the_harnesss_default_device_is_whatever_there_is():
    assert LapidaryLM(device="cuda:0", max_model_len=256, num_threads=1).max_length == 256


def test_likelihoods_are_those_of_the_logits(model, llm):
    import numpy
    context, continuation = "What is 48", " + 17? It is"
    [(score, is_greedy)] = model.loglikelihood(instances("loglikelihood", (context, continuation)), disable_tqdm=True)
    ids, first = llm.encode(context + continuation), len(llm.encode(context))
    logits = llm.logits(ids).astype(numpy.float64)
    logprobs = logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
    expected = sum(logprobs[at - 1, ids[at]] for at in range(first, len(ids)))
    assert score == pytest.approx(expected, abs=1e-3)
    assert is_greedy == all(logits[at - 1].argmax() == ids[at] for at in range(first, len(ids)))


@pytest.mark.parametrize("num_ids", [0, 1, 3, 4, 7, 8, 100])
def test_windows_predict_every_token_once(num_ids):
    ids = list(range(1, num_ids + 1))
    windows = list(_windows(ids, prefix_id=0, max_length=4))
    assert sum((continuation for _, continuation in windows), []) == ids
    for context, continuation in windows:
        assert len(context) >= 1 and len(context) + len(continuation) <= 4
        assert context + continuation == [0, *ids][continuation[0] - len(context):continuation[-1] + 1]


def test_a_rolling_likelihood_is_the_sum_over_its_windows(model):
    [whole] = model.loglikelihood_rolling(instances("loglikelihood_rolling", ("Once upon a time",)), disable_tqdm=True)
    [(same, _)] = model.loglikelihood(instances("loglikelihood", ("", "Once upon a time")), disable_tqdm=True)
    assert whole == pytest.approx(same)
    long = "Pebble Valley is a quiet place. " * 140
    [total] = model.loglikelihood_rolling(instances("loglikelihood_rolling", (long,)), disable_tqdm=True)
    assert math.isfinite(total) and total < 0


def test_answers_end_where_the_task_says(model):
    prompt = model.apply_chat_template([{"role": "user", "content": "What is 48 + 17?"}])
    answers = model.generate_until(
        instances("generate_until", (prompt, {"until": ["\n"], "do_sample": False}), (prompt, {"until": [" ="]})),
        disable_tqdm=True)
    assert answers == ["48 + 17 = 65", "48 + 17"]
