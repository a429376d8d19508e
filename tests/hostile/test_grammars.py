"""Forms of an answer that cannot be met, or take too many states, beside answers that go on: with drafts and without."""

import asyncio
import json
import pathlib

import pytest
from target import MEGABYTE, check_refusal, in_groups, rounds

CHAT = "/v1/chat/completions"
PEBBLE = pathlib.Path(__file__).resolve().parents[2] / "models" / "pebble-e"


def schema(content):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": content}}}


def random_schema(draw, depth=0):
    if depth > 3 or draw.random() < 0.3:
        return draw.choice([
            {"type": "integer", "multipleOf": draw.choice([3, 7, 97])}, {"type": "string", "maxLength": draw.choice([0, 3, 300])},
            {"enum": [draw.choice([None, 1, "a", 1e300, [], {}])]}, {"const": draw.randrange(10)}, {}, True, False,
            {"type": "number", "minimum": 1e-300, "maximum": draw.choice([1e-301, 1, 1e300])},
            {"type": "string", "format": draw.choice(["date", "email", "uuid", "nonsense"])},
            {"type": "string", "pattern": draw.choice(["^a+$", "(a|b)*c", "[", "\\p{L}{1,9}", "(?=x)", "a{99999}"])},
            {"$ref": draw.choice(["#", "#/$defs/a", "#/nowhere", "http://example.com/x"])},
        ])
    inner = [random_schema(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    return draw.choice([
        {"anyOf": inner}, {"allOf": inner}, {"oneOf": inner}, {"not": inner[0] if inner else {}},
        {"type": "array", "items": inner[0] if inner else {}, "minItems": draw.choice([0, 2, 10**9]), "uniqueItems": True},
        {"type": "object", "properties": {f"p{number}": child for number, child in enumerate(inner)},
         "required": draw.choice([[], ["p0"], ["missing"]]), "additionalProperties": draw.choice([True, False, {}])},
    ])


def random_form(draw):
    """Fields of a request that ask for a form: some impossible, some no form at all."""
    return draw.choice([
        lambda: schema(random_schema(draw)),
        lambda: schema({"$defs": {"a": random_schema(draw)}, "anyOf": [random_schema(draw), {"$ref": "#/$defs/a"}]}),
        lambda: {"structured_outputs": {"regex": "".join(draw.choice("ab()[]{}|*+?.^$\\1,-") for _ in range(30))}},
        lambda: {"structured_outputs": {"choice": ["a" * draw.randint(0, 200) for _ in range(draw.randint(0, 50))]}},
        lambda: {"structured_outputs": {"grammar": draw.choice([
            'root ::= root "a"', 'root ::= "a" root', 'root ::= x', 'root ::= ("a" | "b"){1,5000}', 'root ::= "' + "a" * 5000,
            "root ::= [^\\x00-\\U0010FFFF]", "", "root ::= " + "(" * 500 + '"a"' + ")" * 500, 'root ::= ""'])}},
        lambda: {"allowed_token_ids": [5], "response_format": {"type": "json_object"}},
        lambda: {"response_format": {"type": draw.choice(["json_object", "xml", 5, None])}},
        lambda: {"tools": [{"type": "function", "function": {"name": "f", "strict": True,
                                                             "parameters": random_schema(draw)}}],
                 "tool_choice": draw.choice(["required", "auto", {"type": "function", "function": {"name": "f"}}])},
    ])()


# Of these a step fails: too many states, too many meanings, or no token that may come.
FAILING = [
    schema({"type": "integer", "multipleOf": 999_983}),
    {"structured_outputs": {"grammar": 'root ::= (("a" | "b")* "x" | ("a" | "b")* "y"){3000}'}},
    {"allowed_token_ids": [5], "response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("flags", [["--no-spec"], ["--spec-tokens", "3", "--spec-fixed"]], ids=["plain", "drafted"])
def test_forms(start, flags):
    target = start("--max-model-len", "512", "--max-num-seqs", "8", *flags, model=PEBBLE)
    before = target.resident()

    async def send(fields, **options):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, **fields, **options}
        status, answer = await target.ask(body, CHAT)
        # Also what fails in a step: the request's own form is the reason.
        assert status in (200, 400), (fields, status, answer)
        if status != 200:
            check_refusal(answer)
            assert answer["error"]["type"] == "invalid_request_error", answer
        return status

    for draw in rounds("grammars"):
        forms = [random_form(draw) for _ in range(40)] + FAILING * 2

        async def play():
            beside = asyncio.create_task(target.ask({"prompt": "Hello", "max_tokens": 400, "ignore_eos": True}))
            await in_groups((send(form, n=draw.choice([1, 2])) for form in forms), 6)
            status, answer = await beside
            assert status == 200 and answer["usage"]["completion_tokens"] == 400, answer

        asyncio.run(play())
        target.check()
    assert target.resident() < before + 1024 * MEGABYTE


@pytest.mark.parametrize("form", [FAILING[0], FAILING[2]], ids=["states", "no token"])
def test_a_stream_that_its_own_form_fails_ends_with_that_error(start, form):
    target = start("--max-model-len", "512", model=PEBBLE)

    async def play():
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "stream": True, **form}
        status, events = await target.ask(body, CHAT)
        if status != 200:  # It was refused before the stream began.
            return events
        (error,) = [event for event in events if "error" in event]
        return error

    error = asyncio.run(play())
    check_refusal(error)
    assert error["error"]["type"] == "invalid_request_error" and error["error"]["param"], error
    target.check()


def test_schemas_that_are_no_schemas(start):
    """A refusal names the field, whatever stands where a schema should."""
    target = start("--max-model-len", "256")

    async def play():
        for odd in (None, 5, "x", [], [{}], {"type": 7}, {"properties": []}, {"required": "a"}, {"enum": {}}, {"items": 3},
                    {"$ref": 5}, {"allOf": {}}, {"pattern": 1, "type": "string"}, {"minLength": -1, "type": "string"},
                    json.loads("[" * 60 + "]" * 60)):
            status, answer = await target.ask(
                {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, **schema(odd)}, CHAT)
            assert status in (200, 400), (odd, status, answer)

    asyncio.run(play())
    target.check()
