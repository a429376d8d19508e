"""Tools through MCP on the chat page: off until they are switched on, and no call runs before the user allows it."""


import httpx
import pytest

from mcp_tools import ToolServer
from page_faults import violations
from page_visitor import CHAT, call, stream

ASKS = stream({"content": "I look."}, call("get_weather", '{"city": "Oslo"}'), finish="tool_calls")


@pytest.fixture(scope="module")
def tools():
    server = ToolServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def with_tools(start, tools):
    return start("--mcp-servers", tools.url)


@pytest.fixture
def mcp_visitor(visit, with_tools, tools):
    tools.called.clear()
    tools.requests.clear()
    tools.free.clear()
    visitor = visit(with_tools)
    visitor.allowed = [tools.url]
    yield visitor


def switch_on(visitor, url, told="Offers get_weather, fail, wait"):
    visitor.page.click("#open-settings")
    visitor.page.get_by_label(url).check()
    visitor.page.wait_for_selector(f"#settings >> text={told}")
    visitor.page.click("#close-settings")


def results(body):
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


def test_without_the_flag_no_server_can_be_called(visitor, tools):
    visitor.page.click("#open-settings")
    assert "--mcp-servers" in visitor.text("#mcp-none") and not visitor.page.is_visible("#mcp-note")
    with pytest.raises(Exception, match="Failed to fetch"):
        visitor.page.evaluate("(url) => fetch(url)", tools.url)
    assert any("connect-src" in violation for violation in visitor.page.evaluate("violations.splice(0)"))
    visitor.requests.clear()
    visitor.problems.clear()


def test_nothing_is_asked_of_a_server_that_is_off(mcp_visitor, tools):
    asked = mcp_visitor.answers_with(ASKS)
    mcp_visitor.page.click("#open-settings")
    mcp_visitor.page.get_by_label(tools.url).wait_for()
    assert not mcp_visitor.page.get_by_label(tools.url).is_checked()
    mcp_visitor.ask("Weather in Oslo?")
    assert "tools" not in asked[0]
    assert mcp_visitor.page.get_by_role("button", name="Run").count() == 0
    assert tools.requests == []


def test_a_call_runs_once_it_is_allowed(mcp_visitor, tools):
    visitor = mcp_visitor
    asked = visitor.answers_with(ASKS, stream({"content": "Take an umbrella."}), stream({"content": "Bye."}))
    switch_on(visitor, tools.url)
    visitor.ask("Weather in Oslo?")
    [offered] = [tool["function"] for tool in asked[0]["tools"] if tool["function"]["name"] == "get_weather"]
    assert offered["description"] == "The weather of a city now" and offered["parameters"]["required"] == ["city"]
    card = visitor.text(".call")
    assert "get_weather" in card and '"city": "Oslo"' in card and f"Send this to {tools.url}?" in card
    assert violations(visitor, "confirm") == []
    assert tools.called == [], "nothing runs before it is allowed"
    visitor.page.get_by_role("button", name="Run get_weather").click()
    visitor.page.wait_for_selector("text=Take an umbrella.")
    visitor.wait()
    assert tools.called == [("get_weather", "Oslo")]
    assert results(asked[1]) == ["It rains in Oslo."]
    assert "It rains in Oslo." in visitor.text(".call")
    for method, headers in tools.requests:
        assert method in ("OPTIONS", "POST")
        assert "authorization" not in headers and "cookie" not in headers and "referer" not in headers
    visitor.page.reload()
    visitor.ask("Thanks")
    assert asked[2]["tools"] == asked[1]["tools"], "what is on stays on, and is connected before the model is asked"
    visitor.page.click("#open-settings")
    visitor.page.get_by_label(tools.url).uncheck()
    visitor.ask("Once more")
    assert "tools" not in asked[3]


def test_a_refused_call_does_not_run_and_the_model_is_told(mcp_visitor, tools):
    asked = mcp_visitor.answers_with(ASKS, stream({"content": "A pity."}))
    switch_on(mcp_visitor, tools.url)
    mcp_visitor.ask("Weather in Oslo?")
    mcp_visitor.page.get_by_role("button", name="Refuse get_weather").click()
    mcp_visitor.page.wait_for_selector("text=A pity.")
    mcp_visitor.wait()
    assert results(asked[1]) == ["The user did not allow this call."]
    assert tools.called == []


def test_each_of_several_calls_is_asked_for(mcp_visitor, tools):
    visitor = mcp_visitor
    asked = visitor.answers_with(
        stream(call("get_weather", '{"city": "Oslo"}'), call("mine", "{}", 1, "call_2"), call("fail", "{}", 2, "call_3"),
               finish="tool_calls"), stream({"content": "So it is."}))
    visitor.setting(tools='[{"name": "mine"}]')
    switch_on(visitor, tools.url)
    visitor.ask("All of it")
    visitor.page.get_by_label("Result of mine").fill("7")
    visitor.page.get_by_role("button", name="Run fail").click()
    visitor.page.wait_for_selector(".call >> text=Error: ")
    assert len(asked) == 1 and tools.called == [("fail",)]
    visitor.page.get_by_role("button", name="Run get_weather").click()
    visitor.page.wait_for_selector(".call >> text=It rains in Oslo.")
    assert len(asked) == 1, "one result is still to come"
    assert visitor.page.get_by_label("Result of mine").input_value() == "7", "what is typed stays"
    visitor.page.get_by_role("button", name="Send the result").click()
    visitor.page.wait_for_selector("text=So it is.")
    visitor.wait()
    told = {message["tool_call_id"]: message["content"] for message in asked[1]["messages"] if message["role"] == "tool"}
    assert told["call_1"] == "It rains in Oslo." and told["call_2"] == "7" and told["call_3"].startswith("Error: ")


def test_a_running_call_can_be_cancelled(mcp_visitor, tools):
    asked = mcp_visitor.answers_with(stream(call("wait", "{}"), finish="tool_calls"), stream({"content": "At last."}))
    switch_on(mcp_visitor, tools.url)
    mcp_visitor.ask("Wait")
    mcp_visitor.page.get_by_role("button", name="Run wait").click()
    cancel = mcp_visitor.page.get_by_role("button", name="Cancel")
    cancel.wait_for()
    assert cancel.evaluate("(button) => button === document.activeElement"), "the focus is not lost"
    mcp_visitor.page.keyboard.press("Enter")
    mcp_visitor.page.get_by_role("button", name="Run wait").wait_for()
    assert len(asked) == 1
    tools.free.set()
    mcp_visitor.page.get_by_role("button", name="Run wait").click()
    mcp_visitor.page.wait_for_selector("text=At last.")
    mcp_visitor.wait()
    assert results(asked[1]) == ["done"]


@pytest.mark.parametrize("arguments", ["[1]", '{"city": ', '"Oslo"'])
def test_arguments_that_are_no_object_do_not_run(mcp_visitor, tools, arguments):
    mcp_visitor.answers_with(stream(call("get_weather", arguments), finish="tool_calls"))
    switch_on(mcp_visitor, tools.url)
    mcp_visitor.ask("Weather?")
    assert mcp_visitor.page.get_by_role("button", name="Run get_weather").is_disabled()
    assert "These arguments are no JSON object" in mcp_visitor.text(".call")


def test_a_server_that_forgot_the_session_is_asked_for_another(mcp_visitor, tools):
    mcp_visitor.expected_problems = ["404 (Not Found)"]
    asked = mcp_visitor.answers_with(ASKS, stream({"content": "Take an umbrella."}))
    switch_on(mcp_visitor, tools.url)
    mcp_visitor.ask("Weather in Oslo?")
    mcp_visitor.page.evaluate("mcpServers[0].session = 'of-long-ago'")
    mcp_visitor.page.get_by_role("button", name="Run get_weather").click()
    mcp_visitor.page.wait_for_selector("text=Take an umbrella.")
    mcp_visitor.wait()
    assert results(asked[1]) == ["It rains in Oslo."]


def test_a_server_that_is_gone_can_be_tried_again(visit, start):
    tools = ToolServer()
    server = start("--mcp-servers", tools.url)
    visitor = visit(server)
    visitor.allowed = [tools.url]
    visitor.expected_problems = ["net::ERR_CONNECTION_REFUSED", "404 (Not Found)"]
    asked = visitor.answers_with(ASKS, stream({"content": "Take an umbrella."}))
    switch_on(visitor, tools.url)
    visitor.ask("Weather in Oslo?")
    tools.stop()
    visitor.page.get_by_role("button", name="Run get_weather").click()
    visitor.page.wait_for_selector(".call .error >> text=It cannot be reached. Is it running")
    assert len(asked) == 1 and tools.called == []
    tools = ToolServer(port=tools.port)
    visitor.page.get_by_role("button", name="Run get_weather").click()
    visitor.page.wait_for_selector("text=Take an umbrella.")
    visitor.wait()
    assert tools.called == [("get_weather", "Oslo")]
    tools.stop()
    assert server.stop() == 0


def test_the_policy_holds_for_every_other_address_of_that_server(mcp_visitor, tools):
    with pytest.raises(Exception, match="Failed to fetch"):
        mcp_visitor.page.evaluate("(url) => fetch(url)", tools.url.replace("/mcp", "/other"))
    assert any("/other" in violation for violation in mcp_visitor.page.evaluate("violations.splice(0)"))
    assert tools.requests == []
    mcp_visitor.requests.clear()
    mcp_visitor.problems.clear()


REPLIES = {
    "no server": (lambda route: route.abort(), "It cannot be reached. Is it running"),
    "an error": (lambda route: route.fulfill(status=500, json={"error": {"message": "out of order"}}),
                 "It answered with the status 500: out of order."),
    "no JSON": (lambda route: route.fulfill(body="<html>"), "Its reply is no answer to what it was asked."),
    "an error of JSON-RPC": (lambda route: route.fulfill(json=[3, {"id": route.request.post_data_json["id"],
                                                                   "error": {"message": "<b>not you"}}]), "<b>not you."),
    "another version": (lambda route: route.fulfill(json={"id": route.request.post_data_json["id"],
                                                          "result": {"protocolVersion": "1999"}}),
                        "It speaks the version 1999 of MCP"),
    "too much": (lambda route: route.fulfill(body="x" * (5 << 20)), "Its reply is too long."),
}


@pytest.mark.parametrize("kind", REPLIES)
def test_odd_servers_are_told_of(mcp_visitor, tools, kind):
    answer, told = REPLIES[kind]
    mcp_visitor.expected_problems = ["net::ERR_FAILED", "500 (Internal"]
    mcp_visitor.page.route(tools.url, answer)
    asked = mcp_visitor.answers_with(stream({"content": "Without, then."}))
    switch_on(mcp_visitor, tools.url, told)
    mcp_visitor.ask("Hello")
    assert "tools" not in asked[0] and "Without, then." in mcp_visitor.text(".assistant")


def test_odd_tools_are_left_out_and_long_results_cut(mcp_visitor, tools):
    def answer(route):
        body = route.request.post_data_json
        good = {"name": "a tool/1", "inputSchema": {"type": "object"}}
        page = body.get("params", {}).get("cursor")
        lists = {None: {"tools": [3, None, {"name": 7}, {"name": "x", "inputSchema": []}, good], "nextCursor": "2"},
                 "2": {"tools": [good, {"name": "mine"}, {"name": "last"}], "nextCursor": "2"}}
        replies = {"initialize": {"protocolVersion": "2025-06-18"}, "tools/list": lists[page],
                   "tools/call": {"content": [{"type": "text", "text": "y" * 200_000}, {"type": "image", "data": "A"}, 5]}}
        result = replies.get(body["method"])
        route.fulfill(status=202) if result is None else route.fulfill(json={"jsonrpc": "2.0", "id": body["id"], "result": result})

    mcp_visitor.page.route(tools.url, answer)
    asked = mcp_visitor.answers_with(stream(call("a_tool_1", "{}"), finish="tool_calls"), stream({"content": "Long."}))
    mcp_visitor.setting(tools='[{"name": "mine", "description": "the user\'s"}]')
    switch_on(mcp_visitor, tools.url, "Offers a tool/1")
    mcp_visitor.ask("Hello")
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["mine", "a_tool_1", "last"]
    assert asked[0]["tools"][0]["function"]["description"] == "the user's"
    mcp_visitor.page.get_by_role("button", name="Run a_tool_1").click()
    mcp_visitor.page.wait_for_selector("text=Long.")
    mcp_visitor.wait()
    assert results(asked[1]) == ["y" * 100_000 + "\n[cut after 100000 characters]"]


def test_replies_as_json_and_without_sessions(visit, start):
    tools = ToolServer(json_response=True, stateless_http=True)
    server = start("--mcp-servers", tools.url)
    visitor = visit(server)
    visitor.allowed = [tools.url]
    asked = visitor.answers_with(ASKS, stream({"content": "Take an umbrella."}))
    switch_on(visitor, tools.url)
    visitor.ask("Weather in Oslo?")
    visitor.page.get_by_role("button", name="Run get_weather").click()
    visitor.page.wait_for_selector("text=Take an umbrella.")
    visitor.wait()
    assert results(asked[1]) == ["It rains in Oslo."]
    assert server.stop() == 0
    tools.stop()


def test_the_policy_names_the_servers_and_no_other(with_tools, server, tools):
    policies = [httpx.get(one.url).headers["content-security-policy"] for one in (server, with_tools)]
    assert "connect-src 'self';" in policies[0]
    assert policies[1] == policies[0].replace("connect-src 'self';", f"connect-src 'self' {tools.url};")
    assert httpx.get(server.url).headers["etag"] != httpx.get(with_tools.url).headers["etag"]


def test_the_result_of_a_deleted_conversation_is_dropped(mcp_visitor, tools):
    asked = mcp_visitor.answers_with(stream(call("wait", "{}"), finish="tool_calls"))
    switch_on(mcp_visitor, tools.url)
    mcp_visitor.ask("Wait")
    mcp_visitor.page.get_by_role("button", name="Run wait").click()
    mcp_visitor.page.get_by_role("button", name="Cancel").wait_for()
    mcp_visitor.page.locator("#conversations li.current").get_by_role("button", name="Delete").click()
    mcp_visitor.page.wait_for_function("() => calling.size === 0")
    assert mcp_visitor.stored() == [] and len(asked) == 1


def test_the_server_takes_the_tools_as_they_are_offered(mcp_visitor, tools):
    mcp_visitor.setting(max_tokens=5)
    switch_on(mcp_visitor, tools.url)
    sent = []
    mcp_visitor.page.on("request", lambda request: sent.append(request.post_data_json) if CHAT in request.url else None)
    mcp_visitor.ask("Weather in Oslo?")
    assert len(sent[0]["tools"]) == 3
    assert not mcp_visitor.page.is_visible(".error") and "5 tokens" in mcp_visitor.text(".assistant .stats")
