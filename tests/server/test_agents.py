"""Whole conversations of agents, through the official clients, with a model that thinks and calls tools."""

import json
from pathlib import Path

import pytest

PEBBLE = Path(__file__).resolve().parents[2] / "models" / "pebble-e"
QUESTION = "What is the weather in Lima and in Fernhill?"
SKIES = {"Lima": {"sky": "sunny", "degrees": 14}, "Fernhill": {"sky": "foggy", "degrees": 27}}
ANSWER = "It is sunny in Lima with 14 degrees. It is foggy in Fernhill with 27 degrees."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "The city"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Current weather."}
SUM = "Calculate 70 x 4."


@pytest.fixture(scope="module")
def pebble(start):
    return start("--device", "cpu", model=PEBBLE)


@pytest.fixture(scope="module")
def responses(pebble):
    with pebble.client() as client:
        yield client.responses


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
            for event in stream:
                if event.type == "response.output_text.delta":
                    streamed[""] += event.delta
                if event.type == "response.function_call_arguments.delta":
                    streamed[event.item_id] = streamed.get(event.item_id, "") + event.delta
            final = stream.get_final_response()
        assert streamed.pop("") == final.output_text
        assert streamed == {item.id: item.arguments for item in final.output if item.type == "function_call"}
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
                 "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}]
    for choice in ({"type": "function", "name": "multiply"},
                   {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "multiply"}]}):
        response = responses.create(model="pebble-e", input="Hello", temperature=0, tools=tools, tool_choice=choice,
                                    max_output_tokens=60)
        assert {item.name for item in response.output if item.type == "function_call"} == {"multiply"}
