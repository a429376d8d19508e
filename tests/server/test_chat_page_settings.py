"""What is set on the chat page: sampling, tools, the key, light and dark; controls and narrow windows."""

import json

import pytest

from page_visitor import ATTACK, CHAT, call, stream


@pytest.mark.parametrize("tools,problem", [("[{", "not JSON"), ('[{"description": "x"}]', 'needs a "name"'),
                                           ('{"name": "f", "parameters": 3}', "no JSON schema")])
def test_bad_tools_are_told_before_anything_is_sent(visitor, tools, problem):
    asked = visitor.answers_with(stream({"content": "no"}))
    visitor.setting(tools=tools)
    visitor.send("Hello")
    assert problem in visitor.text("#tools-problem")
    assert visitor.page.is_visible("#settings")
    assert asked == [] and visitor.page.input_value("#prompt") == "Hello"
    visitor.page.fill("#tools", '{"name": "f"}')
    visitor.page.press("#prompt", "Enter")
    visitor.wait()
    assert asked[0]["tools"] == [{"type": "function", "function": {"name": "f"}}]


def test_sampling_out_of_range_is_told_before_anything_is_sent(visitor):
    asked = visitor.answers_with(stream({"content": "no"}))
    visitor.setting(top_p=1.5)
    visitor.send("Hello")
    assert "Top p" in visitor.text("#sampling-problem")
    assert asked == []


def is_in_view(visitor, locator):
    box = locator.bounding_box()
    return box["y"] >= 0 and box["y"] + box["height"] <= visitor.page.viewport_size["height"]


def test_what_is_wrong_is_scrolled_into_view(visit, server):
    visitor = visit(server, viewport={"width": 1200, "height": 400})
    asked = visitor.answers_with(stream({"content": "no"}))
    for wrong in ({"top_p": 1.5}, {"top_p": "", "tools": "[{"}):
        visitor.setting(**wrong)
        visitor.send("Hello")
        problem = visitor.page.locator(".problem:not(:empty) >> visible=true")
        assert problem.count() == 1 and is_in_view(visitor, problem)
        visitor.page.click("#close-settings")
    assert asked == []


def test_errors_are_scrolled_into_view(visit, endless_server):
    visitor = visit(endless_server, viewport={"width": 800, "height": 400})
    visitor.expected_problems = ["net::ERR_"]
    long = "line\n\n" * 60
    visitor.answers_with(stream({"content": long}))
    visitor.ask("Hello")
    waiting = []
    visitor.page.unroute("**" + CHAT)
    visitor.page.route("**" + CHAT, lambda route: waiting.append(route))
    visitor.send("And?")
    visitor.page.wait_for_selector(".waiting")
    visitor.page.evaluate("thread.scrollTop = 0")
    visitor.page.wait_for_selector("#latest", state="visible")
    waiting[0].abort()
    visitor.page.wait_for_selector(".error")
    assert is_in_view(visitor, visitor.page.locator(".error"))


def test_every_sampling_setting_is_sent(visitor):
    asked = visitor.answers_with(stream({"content": "ok"}))
    visitor.setting(**{"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2,
                       "stop-at": "END\n\n###"})
    visitor.ask("Hello")
    sent = {name: asked[0][name] for name in ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "stop")}
    assert sent == {"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2,
                    "stop": ["END", "###"]}


@pytest.mark.parametrize("keep", [False, True])
def test_asks_for_the_key_and_keeps_it_as_told(visit, start, keep):
    server = start("--api-key", "s3cret")
    visitor = visit(server)
    visitor.expected_problems = ["401 (Unauthorized)"]
    visitor.page.wait_for_selector("#key-dialog[open]")
    visitor.page.fill("#key", "wrong")
    visitor.page.press("#key", "Enter")
    visitor.page.wait_for_selector("text=The server does not take the key it was given.")
    visitor.page.fill("#key", "s3cret")
    visitor.page.set_checked("#keep-key", keep)
    visitor.page.press("#key", "Enter")
    visitor.page.wait_for_selector("#model-name:has-text('tiny')")
    visitor.setting(max_tokens=5)
    visitor.ask("Hello")
    assert not visitor.page.is_visible(".error")
    where = visitor.page.evaluate("[localStorage['lapidary.key'], sessionStorage['lapidary.key']]")
    assert where == (["s3cret", None] if keep else [None, "s3cret"])
    visitor.page.reload()
    visitor.page.wait_for_selector("#model-name:has-text('tiny')")
    assert server.stop() == 0


def test_light_dark_and_the_choice_between_them(visitor):
    def brightness():
        return visitor.page.evaluate("""() => {
            const canvas = document.createElement('canvas').getContext('2d');
            canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
            canvas.fillRect(0, 0, 1, 1);
            return canvas.getImageData(0, 0, 1, 1).data[1];
        }""")
    visitor.page.emulate_media(color_scheme="light")
    assert brightness() > 200
    visitor.page.emulate_media(color_scheme="dark")
    assert brightness() < 50
    visitor.page.click("#theme")
    assert brightness() > 200
    visitor.page.reload()
    assert brightness() > 200, "the choice is remembered"
    visitor.page.click("#theme")
    visitor.page.emulate_media(color_scheme="light")
    assert brightness() < 50


def test_a_phone_has_no_sideways_scroll(visit, server):
    visitor = visit(server, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)

    def fits():
        return visitor.page.evaluate("Math.max(document.documentElement.scrollWidth, thread.scrollWidth)") <= 360

    long_word = "x" * 300
    visitor.answers_with(stream({"reasoning_content": long_word},
                                {"content": f"{long_word} `{long_word}`\n\n```\n{long_word}\n```\n\n"
                                            f"|{long_word}|b|\n|-|-|\n|1|2|\n\n# {long_word}\n\n- {long_word}"},
                                call(long_word, json.dumps({"key": long_word})), finish="tool_calls"))
    assert fits()
    visitor.page.tap("#prompt")
    visitor.page.fill("#prompt", long_word)
    visitor.page.tap("#send")
    visitor.wait()
    visitor.page.wait_for_selector(".call")
    visitor.page.tap("summary")
    assert fits()
    for panel in ("sidebar", "settings"):
        visitor.page.tap(f"#open-{panel}")
        assert fits()
        box = visitor.page.locator("#" + panel).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360
        visitor.page.tap(f"#close-{panel}")
        assert not visitor.page.is_visible("#" + panel)
    for button in visitor.page.query_selector_all(".foot button, .bar button, #send"):
        if button.is_visible():
            size = button.bounding_box()
            assert min(size["width"], size["height"]) >= 30, "large enough for a finger"


def test_every_control_has_a_name_and_the_log_is_live(visitor):
    visitor.answers_with(stream({"reasoning_content": "hm"}, {"content": "x"}, call("f", "{}"), finish="tool_calls"))
    visitor.ask("Hello")
    visitor.page.click("#open-settings")
    nameless = visitor.page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea')].filter((control) =>
        !(control.getAttribute('aria-label') || control.labels?.length || control.innerText.trim()))
        .map((control) => control.outerHTML)""")
    assert nameless == []
    log = visitor.page.get_by_role("log")
    assert log.get_attribute("aria-live") == "polite" and log.get_attribute("aria-busy") == "false"
    visitor.page.click("#close-settings")
    assert visitor.page.evaluate("document.activeElement.id") == "open-settings", "focus goes back to what opened the panel"


def test_system_prompts_are_saved_chosen_and_deleted(visitor):
    asked = visitor.answers_with(stream({"content": "ok"}))
    page = visitor.page
    page.click("#open-settings")
    assert page.is_disabled("#save-prompt") and page.is_disabled("#delete-prompt") and page.is_disabled("#saved-prompts")
    for prompt in ("Be brief.\nAnd kind.", ATTACK):
        page.fill("#system", prompt)
        page.click("#save-prompt")
        assert page.is_disabled("#save-prompt"), "it is saved already"
    page.fill("#system", "")
    page.reload()
    page.click("#open-settings")
    assert page.locator("#saved-prompts option").all_inner_texts() == ["Saved prompts", "Be brief.", ATTACK[:60]]
    page.select_option("#saved-prompts", label="Be brief.")
    assert page.input_value("#system") == "Be brief.\nAnd kind."
    visitor.ask("Hello")
    assert asked[0]["messages"][0] == {"role": "system", "content": "Be brief.\nAnd kind."}
    page.click("#delete-prompt")
    assert page.locator("#saved-prompts option").count() == 2
    assert page.input_value("#system") == "Be brief.\nAnd kind.", "the conversation keeps it"
    page.click("text=Undo")
    assert page.input_value("#saved-prompts") == "0"
    page.evaluate("localStorage['lapidary.prompts'] = '[3, null, {}, \"\", \"kept\"]'")
    page.reload()
    page.click("#open-settings")
    assert page.locator("#saved-prompts option").all_inner_texts() == ["Saved prompts", "kept"]
