"""vLLM's keywords: what changes nothing passes, what would change something is a sentence."""

import pytest
from lapidary import LLM, SamplingParams, StructuredOutputsParams, TextPrompt, TokensPrompt, _core, keywords
from lapidary.engine import Engine

SHORT = SamplingParams(temperature=0, max_tokens=4)


def ids_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_neutral_keywords_change_nothing(llm, question):
    plain = ids_of(llm.generate(["Once", "Twice"], SHORT))
    assert ids_of(llm.generate(["Once", "Twice"], SHORT, lora_request=None, tokenization_kwargs={})) == plain
    assert ids_of(llm.generate(["Once", "Twice"], SHORT, priority=[3, -1])) == plain
    neutral = SamplingParams(temperature=0, max_tokens=4, detokenize=True, best_of=1, logits_processors=[], extra_args={})
    assert ids_of(llm.generate(["Once", "Twice"], neutral)) == plain
    chat = ids_of(llm.chat(question, SHORT))
    assert ids_of(llm.chat(question, SHORT, lora_request=None, chat_template_content_format="auto")) == chat


@pytest.mark.parametrize("call, message", [
    (lambda llm: llm.generate("Once", SHORT, lora_request=object()), "lora_request.*adapters"),
    (lambda llm: llm.chat([], SHORT, chat_template="{{ x }}"), "chat_template.*beside the tokenizer"),
    (lambda llm: llm.generate(["Once"], SHORT, priority=[1, 2]), "1 prompts but 2 priorities"),
    (lambda llm: SamplingParams(best_of=3), "best_of=3.*cumulative_logprob"),
    (lambda llm: SamplingParams(truncate_prompt_tokens=3), "truncate_prompt_tokens=3"),
    (lambda llm: LLM(pipeline_parallel_size=2), "pipeline_parallel_size=2.*one GPU"),
    (lambda llm: LLM(device="cpu", kv_cache_dtype="fp5"), "kv_cache_dtype 'fp5' is not there; it must be one of auto"),
    (lambda llm: LLM(quantization="awq"), "quantization 'awq' is not there; it must be one of q8_0, q4_0"),
    (lambda llm: LLM(device="cpu", head_bits=5), "head_bits '5' is not there; it must be one of 4, 6, 8, 16"),
    (lambda llm: LLM(device="cpu", pin_threads="perhaps"), "pin_threads must be true or false"),
    (lambda llm: LLM(device="cpu", threads=5000), "threads must be a whole number from 0 to 1024"),
    (lambda llm: LLM(llm.model, revision="v2"), "revision 'v2' is of the Hugging Face Hub"),
])
def test_what_cannot_be_had_is_a_sentence(llm, call, message):
    with pytest.raises(ValueError, match=message):
        call(llm)


def test_unknown_keywords_name_the_nearest(llm):
    with pytest.raises(TypeError, match="LLM has no keyword 'max_num_seq'; did you mean 'max_num_seqs'"):
        LLM(max_num_seq=3)
    with pytest.raises(TypeError, match="did you mean 'use_tqdm'"):
        llm.generate("Once", SHORT, use_tdqm=False)


def test_every_keyword_of_sampling_is_checked_under_its_name():
    for name in keywords.SAMPLING:
        neutral = keywords.SAMPLING[name].neutral
        assert getattr(SamplingParams, name) in (*neutral, None) or keywords._ANY in neutral
        if keywords._ANY not in neutral:
            with pytest.raises(ValueError, match=f"SamplingParams: {name}="):
                SamplingParams(**{name: "something else"})


def test_what_the_engine_takes_is_in_no_table():
    assert not {*Engine.__init__.__kwdefaults__, *_core.option_names()} & set(keywords.ENGINE)
    assert {"quantization", "fast_math", "gpu_memory", "tensor_parallel_size"} <= set(_core.option_names())


def test_prompts_are_dicts_whose_keys_are_known(llm):
    ids = llm.encode("Once")
    expected = ids_of(llm.generate("Once", SHORT))
    assert ids_of(llm.generate(TextPrompt(prompt="Once"), SHORT)) == expected
    assert ids_of(llm.generate([TokensPrompt(prompt_token_ids=ids)], SHORT)) == expected
    assert llm.generate(TokensPrompt(prompt_token_ids=ids, prompt="Once"), SHORT)[0].prompt == "Once"
    for prompt, message in (({"prompt": "a", "prompt_ids": [2]}, "no key 'prompt_ids'"),
                            ({"prompt": "a", "prompt_embeds": [1.0]}, "prompt_embeds"),
                            ({"prompt": "a", "multi_modal_data": {"video": []}}, "videos belong in a message"),
                            ({"prompt": "a", "multi_modal_data": {"smell": 1}}, "no kind 'smell'"),
                            ({"prompt": 3}, "must be a text")):
        with pytest.raises(ValueError, match=message):
            llm.generate(prompt, SHORT)


def test_a_salt_keeps_what_was_computed_apart(llm):
    text = "Once upon a time " * 20
    salted = [TextPrompt(prompt=text, cache_salt=salt) for salt in ("a", "a", "b")]
    cached = [llm.generate(prompt, SHORT)[0].num_cached_tokens for prompt in salted]
    assert cached[1] > cached[0] == cached[2] == 0


def test_a_clone_shares_nothing():
    params = SamplingParams(stop=["a"], structured_outputs=StructuredOutputsParams(choice=["x"]))
    clone = params.clone()
    assert clone == params
    clone.stop.append("b")
    clone.structured_outputs.choice.append("y")
    assert params.stop == ["a"] and params.structured_outputs.choice == ["x"]


def test_the_tokenizer_makes_the_prompts_that_the_model_gets(llm, question):
    tokenizer = llm.get_tokenizer()
    assert tokenizer.encode("Hello") == llm.encode("Hello") == tokenizer("Hello")["input_ids"]
    assert tokenizer.decode(tokenizer.encode("Hello", add_special_tokens=False)) == "Hello"
    assert tokenizer.bos_token_id == llm.bos_token_id and tokenizer.eos_token_id in llm.stop_token_ids
    assert len(tokenizer) == tokenizer.vocab_size == llm.vocab_size
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    assert ids == llm.chat(question, SHORT)[0].prompt_token_ids
    assert tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True) == llm.render(question)


def test_an_answer_that_was_begun_is_gone_on_with(llm, question):
    begun = [*question, {"role": "assistant", "content": "48 + 17 ="}]
    [output] = llm.chat(begun, SamplingParams(temperature=0, max_tokens=None), continue_final_message=True)
    assert output.outputs[0].text.strip() == "65"


def test_weights_are_rounded_and_products_are_fast_on_demand():
    with LLM(device="cpu", quantization="q8_0", fast_math=True, threads=2, numa="off", max_model_len=256) as rounded:
        [output] = rounded.generate("Once", SHORT)
        assert len(output.outputs[0].token_ids) == 4


def test_tools_may_be_called_in_place_of_a_form(llm, question):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}}}}]
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    call = llm.encode("<|tool_call>", add_special_tokens=False)[0]
    for bias, is_call in ((100.0, True), (-100.0, False)):
        params = SamplingParams(temperature=0, max_tokens=100, logit_bias={call: bias},
                                structured_outputs=StructuredOutputsParams(json=schema))
        [answer] = llm.chat(question, params, tools=tools)[0].outputs
        if is_call:
            assert answer.token_ids[0] == call
        else:
            assert answer.text.startswith("{")


def test_a_budget_of_thoughts_needs_a_conversation(llm):
    with pytest.raises(ValueError, match="thinking_token_budget.*needs a conversation"):
        llm.generate("Once", SamplingParams(thinking_token_budget=3))
