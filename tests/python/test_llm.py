"""Batches: what goes in, what comes out."""

import json

import pytest
from lapidary import LLM, RequestOutput, SamplingParams, StructuredOutputsParams

GREEDY = SamplingParams(temperature=0, max_tokens=None)


def text_of(output):
    return output.outputs[0].text


def test_the_bundled_model_answers_without_a_model_named(llm, question):
    [output] = llm.chat(question, GREEDY)
    assert text_of(output) == "48 + 17 = 65"
    assert output.outputs[0].finish_reason == "stop" and output.outputs[0].stop_reason is None
    assert output.finished and output.prompt is None
    assert output.outputs[0].token_ids[-1] in llm.stop_token_ids


def test_answers_are_in_the_order_of_the_prompts(llm):
    conversations = [[{"role": "user", "content": f"What is {n} + 1?"}] for n in range(20)]
    outputs = llm.chat(conversations, GREEDY, use_tqdm=False)
    assert [text_of(output) for output in outputs] == [f"{n} + 1 = {n + 1}" for n in range(20)]
    assert len({output.request_id for output in outputs}) == 20


def test_a_prompt_is_text_or_ids_or_a_dict_of_either(llm):
    params = SamplingParams(temperature=0, max_tokens=5)
    ids = llm.encode("Once upon a time")
    assert ids[0] == llm.bos_token_id
    by_kind = [llm.generate(prompt, params)[0] for prompt in
               ("Once upon a time", ids, {"prompt": "Once upon a time"}, {"prompt_token_ids": ids})]
    assert all(output.prompt_token_ids == ids for output in by_kind)
    assert len({tuple(output.outputs[0].token_ids) for output in by_kind}) == 1
    assert by_kind[0].prompt == "Once upon a time" and by_kind[1].prompt is None
    assert len(by_kind[0].outputs[0].token_ids) == 5 and by_kind[0].outputs[0].finish_reason == "length"
    assert llm.generate([], params) == []


def test_each_prompt_may_have_its_own_parameters(llm):
    short, long = (SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 7))
    outputs = llm.generate(["Once", "Once"], [short, long])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 7]
    with pytest.raises(ValueError, match="2 prompts but 1 sampling"):
        llm.generate(["Once", "Once"], [short])


def test_seeds_decide_what_is_drawn(llm):
    def draw(seed, n=1):
        params = SamplingParams(temperature=1, seed=seed, n=n, max_tokens=20, ignore_eos=True)
        return [output.token_ids for output in llm.generate("Once", params)[0].outputs]

    assert draw(7) == draw(7) != draw(8)
    assert draw(7, n=3) == draw(7) + draw(8) + draw(9)


def test_without_a_seed_runs_repeat_but_requests_differ(question):
    def run():
        with LLM(device="cpu", max_model_len=512, seed=3, num_threads=1) as llm:
            params = SamplingParams(temperature=1, max_tokens=12, ignore_eos=True, n=2)
            return [one.token_ids for output in llm.generate(["Once", "Once"], params) for one in output.outputs]

    first = run()
    assert first == run()
    assert len({tuple(ids) for ids in first}) == 4


def test_stop_strings_and_stop_tokens_are_named(llm, question):
    output = llm.chat(question, SamplingParams(temperature=0, max_tokens=None, stop=[" ="]))[0].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("48 + 17", "stop", " =")
    params = SamplingParams(temperature=0, max_tokens=None, stop=" =", include_stop_str_in_output=True)
    assert llm.chat(question, params)[0].outputs[0].text == "48 + 17 ="
    token = llm.chat(question, GREEDY)[0].outputs[0].token_ids[2]
    output = llm.chat(question, SamplingParams(temperature=0, stop_token_ids=[token]))[0].outputs[0]
    assert output.stop_reason == token and output.token_ids[-1] == token


def test_logprobs_are_of_answer_and_prompt(llm, question):
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=0)
    output = llm.chat(question, params)[0]
    answer = output.outputs[0]
    assert len(answer.logprobs) == len(answer.token_ids)
    for token_id, position in zip(answer.token_ids, answer.logprobs):
        assert len(position) == 2 and position[token_id].rank == 1
        assert position[token_id].decoded_token == llm.decode([token_id])
    total = sum(position[token_id].logprob for token_id, position in zip(answer.token_ids, answer.logprobs))
    assert answer.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None
    assert [set(position) for position in output.prompt_logprobs[1:]] == [{id} for id in output.prompt_token_ids[1:]]
    alone = llm.generate(output.prompt_token_ids, SamplingParams(max_tokens=0, prompt_logprobs=0))[0]
    assert alone.prompt_logprobs == output.prompt_logprobs and alone.outputs[0].token_ids == []


def test_structured_outputs_are_kept_to(llm, question):
    def ask(**form):
        params = SamplingParams(temperature=0, max_tokens=60, structured_outputs=StructuredOutputsParams(**form))
        return text_of(llm.chat(question, params)[0])

    assert ask(choice=["rain", "snow"]) in ("rain", "snow")
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
              "additionalProperties": False}
    assert isinstance(json.loads(ask(json=schema))["sum"], int)
    assert ask(regex="[0-9]{3}").isdigit()
    with pytest.raises(ValueError, match="exactly one form"):
        ask(regex="a", choice=["b"])


def test_tools_are_called(llm):
    tool = {"type": "function",
            "function": {"name": "get_weather", "description": "The weather in a town.",
                         "parameters": {"type": "object", "properties": {"town": {"type": "string"}},
                                        "required": ["town"]}}}
    output = llm.chat([{"role": "user", "content": "What is the weather in Pebble?"}],
                      SamplingParams(temperature=0, max_tokens=80), tools=[tool], tool_choice="required")[0].outputs[0]
    [call] = output.tool_calls
    assert call.name == "get_weather" and "town" in json.loads(call.arguments)
    assert output.finish_reason == "tool_calls"


def test_thoughts_are_apart_from_the_text(llm, question):
    rendered = llm.render(question, chat_template_kwargs={"enable_thinking": True})
    assert rendered != llm.render(question) and rendered.startswith("<bos><|turn>")
    output = llm.chat(question, SamplingParams(temperature=0, max_tokens=200),
                      chat_template_kwargs={"enable_thinking": True})[0].outputs[0]
    assert "thought" not in output.text and "<|channel>" not in output.text
    short = llm.chat(question, SamplingParams(temperature=0, max_tokens=200, thinking_token_budget=2),
                     chat_template_kwargs={"enable_thinking": True})[0].outputs[0]
    assert len(short.reasoning) < len(output.reasoning)


def test_text_goes_to_ids_and_back(llm):
    text = "Pebble Valley, 12 °C"
    assert llm.decode(llm.encode(text), skip_special_tokens=True) == text
    assert llm.encode(text, add_special_tokens=False) == llm.encode(text)[1:]


def test_logits_are_the_engines_own_memory(llm, question):
    numpy = pytest.importorskip("numpy")
    answer = llm.chat(question, GREEDY)[0]
    logits = llm.logits(answer.prompt_token_ids)
    assert logits.shape == (len(answer.prompt_token_ids), llm.vocab_size) and logits.dtype == numpy.float32
    assert not logits.flags.owndata and logits.flags.c_contiguous
    assert logits[-1].argmax() == answer.outputs[0].token_ids[0]
    shared = numpy.from_dlpack(logits)
    assert shared.ctypes.data == logits.ctypes.data
    assert (llm.logits(answer.prompt_token_ids) == logits).all()


@pytest.mark.parametrize("params, message", [
    (SamplingParams(temperature=-1), "temperature"),
    (SamplingParams(top_p=2), "top_p"),
    (SamplingParams(max_tokens=10**6), "the context holds 1024 tokens"),
    (SamplingParams(n=0), "n must be at least 1"),
    (SamplingParams(stop=""), "stop"),
    (SamplingParams(logprobs=21), "logprobs"),
    (SamplingParams(temperature="hot"), "wrong type"),
    (SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "nothing"})), "nothing"),
])
def test_bad_parameters_are_value_errors(llm, params, message):
    with pytest.raises(ValueError, match=message):
        llm.generate("Once", params)


def test_bad_input_is_a_value_error(llm):
    for prompt in ([-1], [10**7], {}, ""):
        with pytest.raises(ValueError):
            llm.generate([prompt])
    with pytest.raises(ValueError, match="messages"):
        llm.chat([{"role": "nobody", "content": "?"}])
    with pytest.raises(ValueError, match="/no/such/model"):
        LLM("/no/such/model")
    with pytest.raises(ValueError, match="max_model_len"):
        LLM(max_model_len=0)
    with pytest.raises(ValueError, match="auto, cpu or cuda"):
        LLM(device="tpu")
    with pytest.raises(ValueError, match="cannot be split over 3 ranks: .* work"):
        LLM(device="cpu", tensor_parallel_size=3)
    with pytest.raises(ValueError, match="tensor_parallel_size must be at least 1"):
        LLM(tensor_parallel_size=0)
    with pytest.raises(ValueError, match="auto or bfloat16"):
        LLM(dtype="float8")
    with pytest.raises(ValueError, match="'mtp' or 'ngram'"):
        LLM(speculative_config={"method": "eagle"})


def test_progress_is_told_to_what_is_given(llm, question):
    class Bar:
        n = 0
        is_closed = False

        def __init__(self, total, desc):
            self.total = total
            bars.append(self)

        def update(self, num_new):
            self.n += num_new

        def close(self):
            self.is_closed = True

    bars = []
    llm.chat([question] * 5, GREEDY, use_tqdm=Bar)
    [bar] = bars
    assert bar.n == bar.total == 5 and bar.is_closed


def test_outputs_are_plain_objects(llm, question):
    import pickle
    output = llm.chat(question, GREEDY)[0]
    assert isinstance(output, RequestOutput) and pickle.loads(pickle.dumps(output)) == output
    assert "48 + 17 = 65" in repr(output)
