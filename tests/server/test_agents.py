"""Whole conversations of agents, through the official clients, with a model that thinks and calls tools."""

import json
from pathlib import Path

import anthropic
import pytest

PEBBLE = Path(__file__).resolve().parents[2] / "models" / "pebble-e"
QUESTION = "What is the weather in Lima and in Fernhill?"
SKIES = {"Lima": {"sky": "sunny", "degrees": 14}, "Fernhill": {"sky": "foggy", "degrees": 27}}
ANSWER = "It is sunny in Lima with 14 degrees. It is foggy in Fernhill with 27 degrees."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "The city"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Current weather."}
SUM = "Calculate 70 x 4."
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def pebble(start):
    return start("--device", "cpu", model=PEBBLE)


@pytest.fixture(scope="module")
def responses(pebble):
    with pebble.client() as client:
        yield client.responses


@pytest.fixture(scope="module")
def messages(pebble):
    with anthropic.Anthropic(base_url=pebble.url, api_key="none", max_retries=0) as client:
        yield client.messages


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("streams", [False, True])
def test_responses_call_tools_and_read_their_results(pebble, responses, streams, strict):
    tools = [{"type": "function", **WEATHER, "parameters": SCHEMA, "strict": strict}]

    def ask(**fields):
        fields = {"model": "pebble-e", "tools": tools, "temperature": 0, **fields}
        if not streams:
            return responses.create(**fields)
        with responses.stream(**fields) as stream:
            streamed = {"": ""}
            num_parts = 0
            for event in stream:
                num_parts += event.type == "response.function_call_arguments.delta"
                if event.type == "response.output_text.delta":
                    streamed[""] += event.delta
                if event.type == "response.function_call_arguments.delta":
                    streamed[event.item_id] = streamed.get(event.item_id, "") + event.delta
            final = stream.get_final_response()
        assert streamed.pop("") == final.output_text
        assert streamed == {item.id: item.arguments for item in final.output if item.type == "function_call"}
        assert num_parts == 0 or num_parts > 2 * len(streamed), "they come as they are written"
        return final

    before = pebble.metric("request_success_total", finished_reason="tool_calls")
    first = ask(input=QUESTION)
    assert pebble.metric("request_success_total", finished_reason="tool_calls") == before + 1
    calls = [item for item in first.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)["city"]) for call in calls] == [
        ("get_weather", "Lima"), ("get_weather", "Fernhill")]
    results = [{"type": "function_call_output", "call_id": call.call_id,
                "output": json.dumps(SKIES[json.loads(call.arguments)["city"]])} for call in calls]
    assert ask(input=results, previous_response_id=first.id).output_text == ANSWER
    spelled_out = [{"role": "user", "content": QUESTION}, *[item.to_dict() for item in first.output], *results]
    assert ask(input=spelled_out, store=False).output_text == ANSWER


def test_chat_completions_stream_arguments_as_they_are_written(pebble):
    fields = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 200,
              "tools": [{"type": "function", "function": {**WEATHER, "parameters": SCHEMA}}]}
    whole = pebble.post("/v1/chat/completions", json=fields).json()["choices"][0]
    deltas = []
    with pebble.client() as client:
        for chunk in client.chat.completions.create(model="pebble-e", stream=True, **fields):
            deltas += chunk.choices[0].delta.tool_calls or []
            finish = chunk.choices[0].finish_reason
    assert finish == whole["finish_reason"] == "tool_calls"
    begun = [delta for delta in deltas if delta.id]
    assert [delta.index for delta in begun] == [0, 1] and all(delta.function.name == "get_weather" for delta in begun)
    # How many there are depends on how fast they are read.
    assert len(deltas) > len(begun) and all(delta.function.name is None for delta in deltas if not delta.id)
    for index, call in enumerate(whole["message"]["tool_calls"]):
        parts = [delta.function.arguments for delta in deltas if delta.index == index]
        assert "".join(parts) == call["function"]["arguments"]


def test_a_streamed_call_that_is_cut_says_so(pebble):
    fields = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "stream": True,
              "tools": [{"type": "function", "function": {**WEATHER, "parameters": SCHEMA}}]}
    seen = set()
    with pebble.client() as client:
        for most in range(2, 12):
            chunks = list(client.chat.completions.create(model="pebble-e", max_tokens=most, **fields))
            calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
            content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert chunks[-1].choices[0].finish_reason == "length"
            assert not calls or not content, "never both as a call and as text"
            seen.add(bool(calls))
    assert seen == {False, True}


def test_responses_think_when_asked(responses):
    plain = responses.create(model="pebble-e", input=SUM, temperature=0)
    assert [item.type for item in plain.output] == ["message"]
    thought = responses.create(model="pebble-e", input=SUM, temperature=0, reasoning={"effort": "high"})
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert "280 + 0 = 280" in thought.output[0].content[0].text
    assert thought.output_text == "70 * 4 = 280"
    details = thought.usage.output_tokens_details
    assert 0 < details.reasoning_tokens < thought.usage.output_tokens
    with responses.stream(model="pebble-e", input=SUM, temperature=0, reasoning={"effort": "low"}) as stream:
        types = [event.type for event in stream]
        assert stream.get_final_response().output_text == thought.output_text
    assert "response.reasoning_text.delta" in types
    assert types.index("response.reasoning_text.done") < types.index("response.output_text.delta")


def test_responses_are_parsed_by_a_schema(responses):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
              "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "result", "schema": schema, "strict": True}}
    response = responses.create(model="pebble-e", input=SUM, temperature=0, text=form, max_output_tokens=60)
    assert isinstance(json.loads(response.output_text)["sum"], int)


def test_responses_may_demand_one_of_the_tools(responses):
    tools = [{"type": "function", **WEATHER, "parameters": SCHEMA},
             {"type": "function", "name": "multiply", "description": "Multiplies.", "parameters": {
                 "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"]}}]
    for choice in ({"type": "function", "name": "multiply"},
                   {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "multiply"}]}):
        response = responses.create(model="pebble-e", input="Hello", temperature=0, tools=tools, tool_choice=choice,
                                    max_output_tokens=60)
        assert {item.name for item in response.output if item.type == "function_call"} == {"multiply"}


@pytest.mark.parametrize("streams", [False, True])
def test_messages_call_tools_and_read_their_results(messages, streams):
    tools = [{**WEATHER, "input_schema": SCHEMA}]

    def ask(conversation):
        fields = dict(model="pebble-e", max_tokens=200, extra_body=GREEDY, tools=tools, messages=conversation)
        if not streams:
            return messages.create(**fields)
        with messages.stream(**fields) as stream:
            text, parts = "", []
            for event in stream:
                text += event.text if event.type == "text" else ""
                parts += [event.partial_json] if event.type == "input_json" else []
            final = stream.get_final_message()
        inputs = [block.input for block in final.content if block.type == "tool_use"]
        assert not parts or len(parts) > 2 * len(inputs), "they come as they are written"
        assert "".join(parts).replace(" ", "") == "".join(json.dumps(each).replace(" ", "") for each in inputs)
        assert text == "".join(block.text for block in final.content if block.type == "text")
        return final

    conversation = [{"role": "user", "content": QUESTION}]
    first = ask(conversation)
    assert first.stop_reason == "tool_use"
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [
        ("get_weather", {"city": "Lima"}), ("get_weather", {"city": "Fernhill"})]
    conversation += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                      "content": json.dumps(SKIES[call.input["city"]])} for call in calls]}]
    second = ask(conversation)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", ANSWER)
    counted = messages.count_tokens(model="pebble-e", tools=tools, messages=conversation)
    assert counted.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens


def test_messages_think_when_asked(messages):
    fields = dict(model="pebble-e", max_tokens=200, extra_body=GREEDY, messages=[{"role": "user", "content": SUM}])
    assert [block.type for block in messages.create(**fields).content] == ["text"]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    thought = messages.create(**fields, thinking=thinking)
    assert [block.type for block in thought.content] == ["thinking", "text"]
    assert "280 + 0 = 280" in thought.content[0].thinking
    assert thought.content[1].text == "70 * 4 = 280"
    with messages.stream(**fields, thinking=thinking) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert {"thinking", "text"} <= set(events)
    assert [(block.type, getattr(block, block.type)) for block in final.content] == [
        (block.type, getattr(block, block.type)) for block in thought.content]
    # What was thought may be sent back with what was said.
    again = messages.create(**{**fields, "messages": [
        *fields["messages"], {"role": "assistant", "content": thought.content}, {"role": "user", "content": SUM}]})
    assert again.content[0].text == "70 * 4 = 280"


@pytest.mark.parametrize("choice, called", [({"type": "any"}, True), ({"type": "tool", "name": "get_weather"}, True),
                                            ({"type": "none"}, False)])
def test_messages_say_whether_a_tool_is_called(messages, choice, called):
    question = "Hello" if called else QUESTION
    answer = messages.create(model="pebble-e", max_tokens=60, extra_body=GREEDY, tool_choice=choice, messages=[
        {"role": "user", "content": question}], tools=[{**WEATHER, "input_schema": SCHEMA}])
    assert (answer.stop_reason == "tool_use") == called
    assert any(block.type == "tool_use" for block in answer.content) == called
