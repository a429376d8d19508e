"""Spans of requests, as an OpenTelemetry collector gets them."""

import http.server
import json
import queue
import threading

import httpx
import pytest

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def collector():
    messages = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            messages.put((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], messages
    server.shutdown()


def test_a_request_is_part_of_its_callers_trace(start, collector):
    port, messages = collector
    server = start("--otlp-traces-endpoint", f"http://127.0.0.1:{port}/v1/traces")

    def ask(flags, **fields):
        response = httpx.post(server.url + "/v1/chat/completions", json={**ASK, **fields}, timeout=60,
                              headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
        assert response.status_code == 200

    ask("00")  # Not sampled: nobody hears of it.
    httpx.get(server.url + "/health")
    ask("01")
    ask("01", stream=True)
    assert server.post("/v1/completions", json={}).status_code == 400
    assert server.stop() == 0, "what waits is sent"
    spans = []
    while not messages.empty():
        path, content_type, body = messages.get()
        assert (path, content_type) == ("/v1/traces", "application/json")
        [resource] = body["resourceSpans"]
        assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "lapidary"}}]
        spans += resource["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == ["POST /v1/chat/completions", "decode", "prefill", "queue"] * 2 + [
        "POST /v1/completions"]
    for first in (0, 4):
        request, decode, prefill, queued = spans[first:first + 4]
        assert {span["traceId"] for span in (request, decode, prefill, queued)} == {TRACE}
        assert request["parentSpanId"] == PARENT
        assert all(span["parentSpanId"] == request["spanId"] for span in (decode, prefill, queued))
        assert queued["endTimeUnixNano"] == prefill["startTimeUnixNano"]
        assert prefill["endTimeUnixNano"] == decode["startTimeUnixNano"]
        assert int(request["startTimeUnixNano"]) <= int(queued["startTimeUnixNano"])
        assert int(decode["endTimeUnixNano"]) <= int(request["endTimeUnixNano"])
        attributes = {item["key"]: item["value"] for item in request["attributes"]}
        assert attributes["gen_ai.usage.output_tokens"] == {"intValue": "6"}
        assert attributes["gen_ai.request.model"] == {"stringValue": "tiny"}
    assert spans[8]["traceId"] != TRACE and "parentSpanId" not in spans[8]
