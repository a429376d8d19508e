"""/openapi.json says what the server does: its paths are there, and answers to what it describes are as described."""

import re
from pathlib import Path

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi_checks

API_PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
EXAMPLES = 25


@pytest.fixture(scope="module")
def description(server):
    return httpx.get(server.url + "/openapi.json").json()


def test_every_endpoint_is_described_and_there(server, description):
    described = {(method.upper(), path) for path, item in description["paths"].items()
                 for method in item if method in ("get", "post", "delete")}
    listed = set(re.findall(r"`(GET|POST|DELETE) (/[^`]*)`", API_PAGE.read_text()))
    assert described == listed
    assert description["info"]["version"] == httpx.get(server.url + "/version").json()["version"]
    for method, path in described:
        name = "tiny"
        if path.startswith("/v1/responses/{id}"):
            name = server.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 1}).json()["id"]
        answer = httpx.request(method, server.url + path.replace("{id}", name), timeout=60)
        assert answer.status_code not in (404, 405), (method, path)


def test_examples_are_answered(server, description):
    contents = {path: item["post"]["requestBody"]["content"] for path, item in description["paths"].items()
                if "post" in item}
    for path, content in contents.items():
        if "application/json" in content:
            answer = server.post(path, json=content["application/json"]["example"])
            assert answer.status_code == 200, (path, answer.text)


def test_answers_are_as_described(server, description):
    checks = [not_a_server_error, openapi_checks.status_code_conformance, openapi_checks.content_type_conformance,
              openapi_checks.response_schema_conformance]
    schema = schemathesis.openapi.from_dict(description)
    schema.config.base_url = server.url
    for operation in schema.get_all_operations():
        operation = operation.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
                             suppress_health_check=list(hypothesis.HealthCheck))
        def check(case):
            if isinstance(case.body, dict):
                case.body.pop("model", None)  # Or nearly all were about a model that is not there.
                case.body.pop("previous_response_id", None)
                for fields in (case.body, case.body.get("sampling_params", {})):
                    for most in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                        if most in fields:
                            fields[most] = fields[most] % 32 + 1
                if operation.path in ("/api/chat", "/api/generate"):
                    options = case.body.setdefault("options", {})
                    options["num_predict"] = options.get("num_predict", 0) % 32 + 1
            case.validate_response(case.call(), checks=checks)

        check()
    server.wait_until_idle()
