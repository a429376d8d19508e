"""Forms of answers, as clients ask for them: tools, schemas of Pydantic models, limits of thoughts."""

import concurrent.futures
import json
import pathlib
from typing import Literal

import pydantic
import pytest

NO_THOUGHT = {"100": -100}  # <|channel>: random weights would think for ever
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 1, "maximum": 3}},
          "required": ["x"], "additionalProperties": False}


def tool(name, **fields):
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **fields}}


@pytest.fixture
def ask(client, hello):
    def create(**options):
        options = {"model": "tiny", "messages": hello, "max_tokens": 100, "temperature": 2.0,
                   "logit_bias": NO_THOUGHT, **options}
        return client.chat.completions.create(**options).choices[0]

    return create


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_only_allowed_tools_are_called(ask):
    for seed in range(4):
        answer = ask(tools=[tool("f"), tool("g"), tool("h")], tool_choice=allowed("required", "g"), seed=seed,
                     parallel_tool_calls=False)
        (call,) = answer.message.tool_calls
        assert call.function.name == "g" and json.loads(call.function.arguments)["x"] in (1, 2, 3)


def opened_calls(ask, **options):
    """Arguments of calls by a model that is pushed to open one and is then on its own."""
    arguments = []
    for seed in range(6):
        answer = ask(tools=[tool("f", **options)], seed=seed, parallel_tool_calls=False, max_tokens=60,
                     logit_bias={**NO_THOUGHT, "48": 100})  # <|tool_call>
        arguments += [json.loads(call.function.arguments) for call in answer.message.tool_calls or []]
    return arguments


def test_a_strict_tool_that_may_be_called_is_called_by_its_schema(ask):
    arguments = opened_calls(ask, strict=True)
    assert arguments and all(value in ({"x": 1}, {"x": 2}, {"x": 3}) for value in arguments)


def test_without_strict_calls_are_free(ask):
    assert not any(value in ({"x": 1}, {"x": 2}, {"x": 3}) for value in opened_calls(ask))


def test_a_server_can_make_every_tool_strict(start, hello):
    client = start("--strict-tools").client()

    def ask(**options):
        return client.chat.completions.create(model="tiny", messages=hello, temperature=2.0, **options).choices[0]

    arguments = opened_calls(ask)
    assert arguments and all(value in ({"x": 1}, {"x": 2}, {"x": 3}) for value in arguments)


def test_a_response_format_leaves_calls_possible(ask):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["ab", 12]}}}
    for seed in range(3):
        answer = ask(response_format=form, tools=[tool("f", strict=True)], seed=seed,
                     logit_bias={**NO_THOUGHT, "48": -100})
        assert json.loads(answer.message.content) in ("ab", 12)
        answer = ask(response_format=form, tools=[tool("f", strict=True)], seed=seed, parallel_tool_calls=False,
                     logit_bias={**NO_THOUGHT, "48": 100})
        assert json.loads(answer.message.tool_calls[0].function.arguments)["x"] in (1, 2, 3)


def test_thoughts_end_at_their_budget(client, hello):
    for budget, field in ((0, {"thinking_token_budget": 0}), (1, {"thinking_token_budget": 1}),
                          (7, {"thinking_token_budget": 7, "reasoning": {"max_tokens": 2}}),
                          (5, {"thinking": {"type": "enabled", "budget_tokens": 5}}), (6, {"reasoning": {"max_tokens": 6}})):
        answer = client.chat.completions.create(
            model="tiny", messages=hello, max_tokens=60, temperature=2.0, seed=1, logprobs=True,
            logit_bias={"100": 60, "101": -100},  # opens thoughts, never closes them
            extra_body={**field, "skip_special_tokens": False, "ignore_eos": True})
        tokens = [entry.token for entry in answer.choices[0].logprobs.content]
        assert tokens[0] == "<|channel>"
        assert tokens.index("<channel|>") == budget + 1
        assert len(tokens) == 60, "the answer goes on freely"


def test_without_thinking_a_form_comes_without_a_thought(client, hello):
    answer = client.chat.completions.create(
        model="tiny", messages=hello, max_tokens=60, temperature=2.0, seed=1, logit_bias={"100": 100},
        extra_body={"guided_choice": ["yes", "no"]}).choices[0]
    assert answer.finish_reason == "stop" and answer.message.content in ("yes", "no")
    assert not getattr(answer.message, "reasoning", None)


def test_a_budget_and_a_form_go_together(client, hello):
    answer = client.chat.completions.create(
        model="tiny", messages=hello, max_tokens=60, temperature=2.0, seed=1, logit_bias={"100": 60, "101": -100},
        extra_body={"thinking_token_budget": 5, "guided_choice": ["yes", "no"],
                    "chat_template_kwargs": {"enable_thinking": True}}).choices[0]
    assert answer.finish_reason == "stop" and answer.message.content in ("yes", "no")
    assert answer.message.reasoning


# --- with what else a request may ask for ---

ARRAY = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
    "type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "minItems": 3, "maxItems": 5}}}


def test_streamed_forms_are_the_whole_ones(client, hello):
    options = dict(model="tiny", messages=hello, max_tokens=200, temperature=2.0, seed=5, logit_bias=NO_THOUGHT)
    whole = client.chat.completions.create(**options, response_format=ARRAY).choices[0]
    stream = client.chat.completions.create(**options, response_format=ARRAY, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.message.content
    options |= dict(tools=[tool("f")], tool_choice="required", parallel_tool_calls=False)
    (call,) = client.chat.completions.create(**options).choices[0].message.tool_calls
    name = arguments = ""
    for chunk in client.chat.completions.create(**options, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
    assert (name, arguments) == (call.function.name, call.function.arguments)


def test_logprobs_name_every_token_of_a_form(ask):
    answer = ask(response_format=ARRAY, seed=6, logprobs=True, top_logprobs=2)
    entries = answer.logprobs.content
    assert "".join(entry.token for entry in entries).startswith(answer.message.content)
    # Of the raw distribution: a form makes unlikely tokens certain, not likely.
    assert all(entry.logprob < 0 and len(entry.top_logprobs) == 2 for entry in entries)


def test_several_answers_all_have_the_form(client, hello):
    choices = client.chat.completions.create(model="tiny", messages=hello, max_tokens=200, temperature=2.0, seed=7, n=4,
                                             logit_bias=NO_THOUGHT, response_format=ARRAY).choices
    texts = [choice.message.content for choice in choices]
    assert all(3 <= len(json.loads(text)) <= 5 for text in texts) and len(set(texts)) > 1


def test_stop_strings_and_max_tokens_end_a_form_early(ask):
    whole = ask(response_format=ARRAY, seed=8).message.content
    stopped = ask(response_format=ARRAY, seed=8, stop=",")
    assert stopped.finish_reason == "stop" and stopped.message.content == whole[:whole.index(",")]
    cut = ask(response_format=ARRAY, seed=8, max_tokens=4)
    assert cut.finish_reason == "length" and whole.startswith(cut.message.content)


# --- text that must come is drafted ---

BOOKING = {"type": "object", "additionalProperties": False, "required": ["number_of_guests", "restaurant_name"],
           "properties": {"number_of_guests": {"type": "integer", "minimum": 1, "maximum": 9},
                          "restaurant_name": {"type": "string", "pattern": "^[a-z]{3,8}$"}}}


@pytest.fixture(scope="module")
def undrafted(start):
    return start("--no-spec")


def test_drafted_text_changes_no_answer_and_no_count(server, undrafted, hello):
    book = {"type": "function", "function": {"name": "book_a_table", "parameters": BOOKING}}
    forms = [{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BOOKING}}},
             {"tools": [book], "tool_choice": "required", "parallel_tool_calls": False}]
    before = server.metric("draft_source_accepted_tokens_total", source="forced")
    for form in forms:
        def create(client, **options):
            return client.chat.completions.create(
                model="tiny", messages=hello, temperature=2.0, seed=3, logit_bias=NO_THOUGHT, logprobs=True,
                extra_body={"return_token_ids": True}, **({"max_tokens": 200} | form | options))
        with server.client() as drafting, undrafted.client() as plain:
            drafted, sampled = create(drafting, n=2), create(plain, n=2)
            assert drafted.usage.completion_tokens == sampled.usage.completion_tokens
            for one, other in zip(drafted.choices, sampled.choices):
                assert one.finish_reason == other.finish_reason in ("stop", "tool_calls")
                assert one.message.content == other.message.content
                assert one.token_ids == other.token_ids
                assert one.logprobs == other.logprobs
                calls = one.message.tool_calls or []
                answer = calls[0].function.arguments if calls else one.message.content
                assert set(json.loads(answer)) == set(BOOKING["required"])
            for length in range(1, 12):  # Some end within forced text.
                cut = create(drafting, max_tokens=length).choices[0]
                assert cut.finish_reason == "length" and cut.token_ids == drafted.choices[0].token_ids[:length]
    assert server.metric("draft_source_accepted_tokens_total", source="forced") > before
    assert undrafted.metric("draft_source_rounds_total", source="forced") == 0


def test_stop_strings_and_streams_see_drafted_text(server, hello):
    with server.client() as client:
        def create(**options):
            return client.chat.completions.create(
                model="tiny", messages=hello, max_tokens=200, temperature=2.0, seed=4, logit_bias=NO_THOUGHT,
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": BOOKING}}, **options)
        whole = create().choices[0].message.content
        assert "".join(chunk.choices[0].delta.content or "" for chunk in create(stream=True)) == whole
        stopped = create(stop="taurant").choices[0]
        assert stopped.finish_reason == "stop" and stopped.message.content == whole[:whole.index("taurant")]


# --- Pydantic models ---


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    count: int = pydantic.Field(ge=0, le=99)
    colour: Literal["red", "green"] | None


class Order(pydantic.BaseModel):
    items: list[Item] = pydantic.Field(min_length=1, max_length=2)
    paid: bool


def test_a_pydantic_model_is_parsed(client, hello):
    answer = client.chat.completions.parse(model="tiny", messages=hello, max_tokens=400, temperature=1.5, seed=4,
                                           logit_bias=NO_THOUGHT, response_format=Order).choices[0]
    assert answer.finish_reason == "stop"
    assert isinstance(answer.message.parsed, Order) and 1 <= len(answer.message.parsed.items) <= 2


def test_a_pydantic_tool_is_called_with_its_model(client, hello):
    import openai
    answer = client.chat.completions.parse(model="tiny", messages=hello, max_tokens=400, temperature=1.5, seed=4,
                                           logit_bias=NO_THOUGHT, tools=[openai.pydantic_function_tool(Order)],
                                           tool_choice="required", parallel_tool_calls=False).choices[0]
    (call,) = answer.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Order)


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA"])
def test_instructor_gets_its_model(client, hello, mode):
    # Its pins exclude the newest client: pip install instructor==1.17.0 in a venv of its own.
    instructor = pytest.importorskip("instructor")
    patched = instructor.from_openai(client, mode=instructor.Mode[mode])
    # With Mode.JSON the schema is only in the prompt: the answer is some object, and has to be the model's by chance.
    model = pydantic.RootModel[dict] if mode == "JSON" else Order
    order = patched.chat.completions.create(model="tiny", messages=hello, max_tokens=400, temperature=1.5, seed=4,
                                            logit_bias=NO_THOUGHT, response_model=model, max_retries=0)
    assert isinstance(order, model)


# --- Pebble ---

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
JSON_TYPES = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object", type(None): "null"}


def schema_of(value):
    """Fits what looks like `value`, however its texts and numbers are."""
    schema = {"type": JSON_TYPES[type(value)]}
    if isinstance(value, dict):
        schema |= {"properties": {key: schema_of(item) for key, item in value.items()}, "required": list(value),
                   "additionalProperties": False}
    if isinstance(value, list):
        schema |= {"items": schema_of(value[0]), "minItems": len(value), "maxItems": len(value)}
    if isinstance(value, str):
        schema["maxLength"] = 24
    if schema["type"] == "integer":
        schema |= {"minimum": -999_999, "maximum": 999_999}
    return schema


def fits(value, schema):
    """For the keywords above and the tools' enum."""
    if "enum" in schema:
        return value in schema["enum"]
    if JSON_TYPES[type(value)] != schema.get("type", JSON_TYPES[type(value)]):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return (all(key in value for key in schema.get("required", []))
                and (schema.get("additionalProperties", True) or all(key in known for key in value))
                and all(fits(item, known.get(key, {})) for key, item in value.items()))
    if isinstance(value, list):
        return (schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
                and all(fits(item, schema.get("items", {})) for item in value))
    if isinstance(value, str):
        return len(value) <= schema.get("maxLength", len(value))
    return "minimum" not in schema or schema["minimum"] <= value <= schema["maximum"]


@pytest.fixture(scope="module")
def pebble(start):
    return start(model=MODELS / "pebble-e")


@pytest.fixture(scope="module")
def pebble_items():
    items = [json.loads(line) for line in (MODELS / "pebble-eval.jsonl").open()]
    return {task: [item for item in items if item["task"] == task] for task in ("json", "tools", "chat")}


def ask_all(server, requests):
    """The choices of greedy requests, many at a time."""
    with server.client() as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
        def create(options):
            return client.chat.completions.create(model="pebble-e", max_tokens=400, temperature=0,
                                                  **options).choices[0]
        return list(pool.map(create, requests))


def as_text(message):
    """Messages have arguments as texts where items have objects."""
    calls = [call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
             for call in message.get("tool_calls", [])]
    return message | ({"tool_calls": calls} if calls else {})


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def test_pebble_scores_no_lower_with_a_schema_and_is_always_valid(pebble, pebble_items):
    items = pebble_items["json"]
    wanted = [json.loads(item["reference"]["content"]) for item in items]
    free = ask_all(pebble, [{"messages": item["messages"]} for item in items])
    held = ask_all(pebble, [{"messages": item["messages"], "response_format": form(schema_of(value))}
                            for item, value in zip(items, wanted)])

    def score(choices):
        return sum(choice.message.content.strip() == item["reference"]["content"]
                   for choice, item in zip(choices, items))

    for choice, value in zip(held, wanted):
        assert choice.finish_reason == "stop"
        assert fits(json.loads(choice.message.content), schema_of(value)), choice.message.content
    assert score(held) >= score(free) > 0
    for choice, other, item in zip(free, held, items):
        if choice.message.content == item["reference"]["content"]:
            assert other.message.content == choice.message.content, "what fits already stays as it is"


def test_pebble_calls_its_tools_no_worse_when_they_are_strict(pebble, pebble_items):
    def score(choices):
        right = 0
        for choice, item in zip(choices, items):
            reference = item["reference"]
            calls = [(call.function.name, json.loads(call.function.arguments))
                     for call in choice.message.tool_calls or []]
            right += ((choice.message.content or "").strip() == reference.get("content", "")
                      and calls == [(call["function"]["name"], call["function"]["arguments"])
                                    for call in reference.get("tool_calls", [])])
        return right

    items = pebble_items["tools"]
    requests = [{"messages": [as_text(message) for message in item["messages"]], "tools": item["tools"]}
                for item in items]
    free = ask_all(pebble, requests)
    strict = [request | {"tools": [{"type": "function", "function": tool["function"] | {"strict": True}}
                                   for tool in request["tools"]]} for request in requests]
    held = ask_all(pebble, strict)
    for choice, request in zip(held, strict):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request["tools"]}
        for call in choice.message.tool_calls or []:
            assert fits(json.loads(call.function.arguments), schemas[call.function.name])
    assert score(held) >= score(free) > 0


def test_pebble_is_valid_where_it_has_no_answer(pebble, pebble_items):
    # Questions of another kind, and schemas that have nothing to do with them.
    questions = [item["messages"] for item in pebble_items["chat"][:20]]
    schemas = [schema_of(json.loads(item["reference"]["content"])) for item in pebble_items["json"][:20]]
    for choice, schema in zip(ask_all(pebble, [{"messages": messages, "response_format": form(schema)}
                                               for messages, schema in zip(questions, schemas)]), schemas):
        assert choice.finish_reason == "stop"
        assert fits(json.loads(choice.message.content), schema), choice.message.content
    tools = [item["tools"] for item in pebble_items["tools"][:20]]
    for offered in tools:  # Every call has an end.
        for parameter in (value for each in offered
                          for value in each["function"]["parameters"].get("properties", {}).values()):
            if parameter["type"] == "string" and "enum" not in parameter:
                parameter["maxLength"] = 24
            if parameter["type"] == "integer":
                parameter |= {"minimum": -999_999, "maximum": 999_999}
    for choice, offered in zip(ask_all(pebble, [{"messages": messages, "tools": offered, "tool_choice": "required",
                                                 "parallel_tool_calls": False}
                                                for messages, offered in zip(questions, tools)]), tools):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in offered}
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        for call in choice.message.tool_calls:
            assert fits(json.loads(call.function.arguments), schemas[call.function.name])


def test_a_form_that_leaves_no_token_is_a_400_with_the_reason(server):
    body = {"prompt": "x", "max_tokens": 8, "allowed_token_ids": [5], "response_format": {"type": "json_object"}}
    refused = server.post("/v1/completions", json=body)
    assert refused.status_code == 400, refused.text
    assert "no token may be drawn" in refused.json()["error"]["message"]
    streamed = server.post("/v1/completions", json={**body, "stream": True})
    events = [line[len("data: "):] for line in streamed.text.splitlines() if line.startswith("data: ")]
    errors = [json.loads(event)["error"] for event in events if "error" in event]
    assert [error["code"] for error in errors] == [400], streamed.text


def long_pattern(num_parts):
    """Any letter may be followed by any that comes later: masks of it take millions of steps."""
    return "".join(f"[{chr(97 + part % 26)}{chr(65 + part % 26)}]*" for part in range(num_parts))


def test_questions_are_answered_beside_a_pattern_whose_masks_never_come(server):
    body = {"prompt": "x", "max_tokens": 64, "structured_outputs": {"regex": long_pattern(8000)}}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        hostile = [pool.submit(server.post, "/v1/completions", json=body) for _ in range(2)]
        num_answered = 0
        while not all(answer.done() for answer in hostile):
            answer = server.post("/v1/completions", json={"prompt": "y", "max_tokens": 4})
            assert answer.status_code == 200, answer.text
            num_answered += 1
        for answer in hostile:
            assert answer.result().status_code in (200, 400), answer.result().text
    assert num_answered > 2
