"""The chat page, used in headless Chromium: typed at, read, stopped; answers, tool calls and errors.

Answers come from the server under test; where a test needs a certain answer (a thought, a tool call, an attack), the
browser is given it in place of the server's.
"""

import json
import re
import time

import httpx
import pytest

from page_visitor import CHAT, PATIENCE, call, stream


def test_types_and_reads_the_streamed_answer(visit, endless_server):
    visitor = visit(endless_server)
    visitor.setting(seed=3, max_tokens=100)
    visitor.ask("Hello")
    whole = httpx.post(endless_server.url + CHAT, timeout=2 * PATIENCE, json={
        "messages": [{"role": "user", "content": "Hello"}], "seed": 3, "max_tokens": 100,
        "chat_template_kwargs": {"enable_thinking": False}}).json()
    [conversation] = visitor.stored()
    assert conversation["messages"][1]["content"] == whole["choices"][0]["message"]["content"]
    assert visitor.text(".user .text") == "Hello"
    first_word = re.search(r"\w{3,}", whole["choices"][0]["message"]["content"])[0]
    assert first_word in visitor.text(".assistant .markdown >> nth=-1")
    stats = visitor.text(".assistant .stats")
    assert re.fullmatch(r"first token [\d.]+ s · [\d.]+ tok/s · \d+ tokens", stats), stats
    assert f"{whole['usage']['completion_tokens']} tokens" in stats
    assert "Cut off at the token limit." in visitor.text(".assistant")


def test_the_answer_grows_before_ones_eyes(visit, endless_server):
    visitor = visit(endless_server)
    visitor.send("Hello")
    num_shown = visitor.wait_for_words()
    visitor.wait_for_words(more_than=num_shown)
    visitor.page.click("#stop")
    visitor.wait()
    assert "Stopped." in visitor.text(".assistant"), "both were seen before the answer ended"


def test_shift_enter_starts_a_line(visitor):
    asked = visitor.answers_with(stream({"content": "ok"}))
    visitor.page.fill("#prompt", "one")
    visitor.page.press("#prompt", "Shift+Enter")
    visitor.page.keyboard.type("two")
    visitor.page.press("#prompt", "Enter")
    visitor.wait()
    assert asked[0]["messages"] == [{"role": "user", "content": "one\ntwo"}]


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_answer_here_and_in_the_server(visit, endless_server, how):
    visitor = visit(endless_server)
    aborted = endless_server.metric("request_success_total", finished_reason="abort") or 0
    visitor.send("Hello")
    visitor.wait_for_words()
    assert endless_server.metric("num_requests_running") == 1
    if how == "button":
        visitor.page.click("#stop")
    else:
        visitor.page.keyboard.press("Escape")
    visitor.wait()
    endless_server.wait_until_idle()
    assert endless_server.metric("request_success_total", finished_reason="abort") == aborted + 1
    assert "Stopped." in visitor.text(".assistant")
    before = visitor.text(".assistant")
    time.sleep(0.3)
    assert visitor.text(".assistant") == before
    assert visitor.stored()[0]["messages"][1]["content"], "what was said until then is kept"


def test_tool_calls_are_shown_and_their_results_sent(visitor):
    asked = visitor.answers_with(
        stream({"reasoning_content": "I ask both."}, call("get_weather", '{"city":"Oslo","unit":"C"}'),
               call("get_time", "{}", 1, "call_2"), finish="tool_calls"),
        stream({"content": "It is 9 degrees at noon."}))
    visitor.page.click("#open-settings")
    visitor.page.click("#example-tool")
    visitor.page.click("#close-settings")
    visitor.ask("Weather in Oslo?")
    assert asked[0]["tools"][0]["function"]["name"] == "get_weather"
    assert "get_weather" in visitor.text(".call >> nth=0")
    assert '{\n  "city": "Oslo",\n  "unit": "C"\n}' in visitor.text(".call >> nth=0")
    assert "get_time" in visitor.text(".call >> nth=1")
    visitor.page.get_by_label("Result of get_weather").fill('{"degrees": 9}')
    visitor.page.get_by_label("Result of get_time").fill("noon")
    visitor.page.get_by_role("button", name="Send the results").click()
    visitor.page.wait_for_selector("text=It is 9 degrees at noon.")
    assert asked[1]["messages"][1:] == [
        {"role": "assistant", "content": None, "reasoning_content": "I ask both.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo","unit":"C"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"degrees": 9}'},
        {"role": "tool", "tool_call_id": "call_2", "name": "get_time", "content": "noon"}]
    visitor.page.reload()
    assert '"degrees": 9' in visitor.text(".call >> nth=0") and "noon" in visitor.text(".call >> nth=1")


def test_an_answer_is_gone_on_with(visitor):
    asked = visitor.answers_with(stream({"content": "Once upon"}, finish="length"), stream({"content": " a time"}))
    visitor.ask("Hello")
    visitor.page.click("[aria-label='Go on with the answer']")
    visitor.page.wait_for_selector("text=Once upon a time")
    visitor.wait()
    assert asked[1]["messages"][-1] == {"role": "assistant", "content": "Once upon"}
    assert (asked[1]["continue_final_message"], asked[1]["add_generation_prompt"]) == (True, False)
    assert "Cut off" not in visitor.text(".assistant")
    assert [message["content"] for message in visitor.stored()[0]["messages"]] == ["Hello", "Once upon a time"]


def test_the_meter_tells_how_full_the_context_is(visitor):
    visitor.answers_with(stream({"content": "one"}, usage=(100, 20)), stream({"content": "two"}, usage=(800, 150)))
    assert not visitor.page.is_visible("#context")
    visitor.ask("Hello")
    assert visitor.text("#context") == "120 of 1,024 tokens"
    meter = visitor.page.get_by_label("Context in use")
    assert meter.evaluate("(meter) => [meter.value, meter.max]") == [120, 1024]
    visitor.ask("And?")
    assert visitor.text("#context") == "950 of 1,024 tokens: nearly full"
    visitor.page.reload()
    visitor.page.wait_for_selector("#context", state="visible")
    assert visitor.text("#context") == "950 of 1,024 tokens: nearly full"
    visitor.page.click("#new")
    assert not visitor.page.is_visible("#context")


def test_the_meter_counts_what_the_server_counts(visit, endless_server):
    visitor = visit(endless_server)
    visitor.setting(max_tokens=20)
    visitor.ask("Hello")
    usage = httpx.post(endless_server.url + CHAT, timeout=2 * PATIENCE, json={
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20,
        "chat_template_kwargs": {"enable_thinking": False}}).json()["usage"]
    assert visitor.text("#context") == f"{usage['total_tokens']} of 4,096 tokens"


def test_errors_are_told_in_words_and_can_be_retried(visitor):
    visitor.expected_problems = ["400 (Bad Request)", "503 (Service Unavailable)", "net::ERR_FAILED"]
    # The server's own refusal: the context of the test's server is 1024 tokens.
    visitor.setting(max_tokens=100000)
    visitor.ask("Hello")
    assert "the context holds 1024 tokens" in visitor.text(".error").lower()
    visitor.setting(max_tokens="")
    visitor.answers_with(json.dumps({"error": {"message": "too many requests are waiting"}}), status=503)
    visitor.page.click("text=Try again")
    visitor.page.wait_for_selector("text=The server is busy: too many requests are waiting.")
    visitor.page.unroute("**" + CHAT)
    visitor.page.route("**" + CHAT, lambda route: route.abort())
    visitor.page.click("text=Try again")
    visitor.page.wait_for_selector("text=The server cannot be reached")
    visitor.answers_with(stream({"content": "half an ans"}, done=False))
    visitor.page.click("text=Try again")
    visitor.page.wait_for_selector("text=The connection broke before the answer was complete.")
    assert "half an ans" in visitor.text(".assistant")
    visitor.answers_with('data: {"error": {"message": "internal error", "code": 500}}\n\ndata: [DONE]\n\n')
    visitor.page.click("text=Try again")
    visitor.page.wait_for_selector("text=Internal error.")
    asked = visitor.answers_with(stream({"content": "well again"}))
    visitor.page.click("text=Try again")
    visitor.page.wait_for_selector("text=well again")
    assert len(asked[0]["messages"]) == 1, "failed answers are not part of the conversation"
    assert not visitor.page.is_visible(".error")
