"""The chat page, used in headless Chromium: typed at, read, stopped, reloaded, attacked.

Answers come from the server under test; where a test needs a certain answer (a thought, a tool call, an attack), the
browser is given it in place of the server's.
"""

import base64
import json
import pathlib
import re
import time

import httpx
import pytest

from page_visitor import CHAT, PATIENCE, Visitor, call, stream

MEDIA = pathlib.Path(__file__).resolve().parent.parent / "data" / "media"
ATTACK = "<script>document.title='pwned';pwned=1</script><img src=x onerror=pwned=1><svg/onload=pwned=1>"


@pytest.fixture
def visit(browser):
    visitors = []

    def open_page(server, **options):
        visitors.append(Visitor(browser, server.url + "/", **options))
        return visitors[-1]

    yield open_page
    try:
        for visitor in visitors:
            visitor.check()
    finally:
        for visitor in visitors:
            visitor.context.close()


@pytest.fixture
def visitor(visit, server):
    return visit(server)


def test_types_and_reads_the_streamed_answer(visit, endless_server):
    visitor = visit(endless_server)
    visitor.setting(seed=3, max_tokens=1500)
    visitor.page.evaluate("""
        window.lengths = new Set();
        new MutationObserver(() => lengths.add(document.querySelector('.assistant')?.innerText.length))
            .observe(byId('messages'), {childList: true, subtree: true, characterData: true});
    """)
    visitor.ask("Hello")
    assert visitor.page.evaluate("lengths.size") > 3, "the answer must grow before one's eyes"
    whole = httpx.post(endless_server.url + CHAT, timeout=2 * PATIENCE, json={
        "messages": [{"role": "user", "content": "Hello"}], "seed": 3, "max_tokens": 1500,
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


def test_reload_keeps_the_conversation_and_its_settings(visitor):
    asked = visitor.answers_with(stream({"content": "First answer"}), stream({"content": "Second answer"}))
    visitor.setting(system="Be brief.", temperature=0.5, thinking=True, seed=7)
    visitor.ask("First question")
    visitor.page.reload()
    assert visitor.text(".user .text") == "First question"
    assert "First answer" in visitor.text(".assistant")
    assert "7 tokens" in visitor.text(".assistant .stats")
    assert visitor.page.input_value("#title") == "First question"
    visitor.ask("Second question")
    assert asked[1]["messages"] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "First question"},
        {"role": "assistant", "content": "First answer"}, {"role": "user", "content": "Second question"}]
    assert (asked[1]["temperature"], asked[1]["seed"]) == (0.5, 7)
    assert asked[1]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "top_p" not in asked[1] and "max_tokens" not in asked[1], "what is empty is left to the server"


def test_reload_during_an_answer_keeps_what_was_said(visit, endless_server):
    visitor = visit(endless_server)
    visitor.send("Hello")
    visitor.wait_for_words()
    visitor.page.reload()
    endless_server.wait_until_idle()
    assert "Broken off" in visitor.text(".assistant")
    assert len(visitor.text(".assistant")) > 20


def test_thinking_is_folded(visitor):
    visitor.answers_with(stream({"reasoning_content": "Let me think\nof it."}, {"content": "The answer is 4."}))
    visitor.ask("2 + 2?")
    assert visitor.page.is_visible("details.thought summary")
    assert not visitor.page.is_visible("details.thought .markdown")
    assert "Let me think" not in visitor.text(".assistant")
    visitor.page.click("details.thought summary")
    assert "Let me think" in visitor.text("details.thought .markdown")
    assert "The answer is 4." in visitor.text(".assistant")


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


def test_no_markup_from_anywhere_becomes_part_of_the_page(visit, start):
    server = start("--served-model-name", ATTACK)
    visitor = visit(server)
    visitor.page.wait_for_selector("#model option", state="attached")
    visitor.answers_with(
        stream({"reasoning_content": ATTACK},
               {"content": f"{ATTACK}\n\n# {ATTACK}\n\n- {ATTACK}\n\n> {ATTACK}\n\n`{ATTACK}` **{ATTACK}**\n\n"
                           f"|a|{ATTACK}|\n|-|-|\n|{ATTACK}|b|\n\n```{ATTACK.replace(' ', '')}\n{ATTACK}\n```\n\n"
                           "[x](javascript:pwned=1) ![x](https://evil.example/x.png) <https://evil.example>"},
               call(ATTACK, json.dumps({ATTACK: ATTACK}), call_id=ATTACK), finish="tool_calls"))
    visitor.setting(system=ATTACK, tools=json.dumps([{"name": ATTACK, "description": ATTACK}]))
    visitor.ask(ATTACK)
    visitor.page.fill("#title", ATTACK)
    visitor.page.press("#title", "Enter")
    visitor.page.get_by_label("Result of").fill(ATTACK)
    visitor.page.get_by_role("button", name="Send the result").click()
    visitor.wait()
    for _ in range(2):
        visitor.page.wait_for_selector(".assistant")
        for summary in visitor.page.query_selector_all("summary"):
            summary.click()
        assert ATTACK in visitor.text(".user .text")
        answer = visitor.text(".assistant >> nth=0")
        assert answer.count(ATTACK) >= 10, answer
        assert visitor.page.title() == ATTACK + " · Lapidary"
        assert ATTACK in visitor.text("#conversations")
        assert visitor.page.evaluate("document.scripts.length") == 1
        assert visitor.page.evaluate(
            "document.querySelectorAll('main :is(script, img, iframe, object, [onerror], [onload])').length") == 0
        links = visitor.page.eval_on_selector_all("main a", "all => all.map(a => a.href)")
        assert set(links) == {"https://evil.example/x.png", "https://evil.example/"}, "links, to be clicked at most"
        visitor.page.reload()
    errors = visit(server)
    errors.expected_problems = ["400 (Bad Request)"]
    errors.answers_with(json.dumps({"error": {"message": ATTACK}}), status=400)
    errors.ask("Hello")
    assert ATTACK in errors.text(".error")


def test_storage_written_by_another_hand_is_harmless(visitor):
    visitor.page.evaluate("""(attack) => {
        localStorage['lapidary.conversation.a'] = JSON.stringify({title: attack, messages: [{role: 'user', content: attack},
            {role: 'assistant', content: attack, tool_calls: [{name: attack}, null], note: attack, error: attack, stats: attack}]});
        localStorage['lapidary.conversation.b'] = '{broken';
        localStorage['lapidary.conversation.c'] = JSON.stringify({messages: [{role: 'king', content: 3}, null, {role: 'user', content: 7}]});
        localStorage['lapidary.current'] = 'a';
        localStorage['lapidary.settings'] = '[]';
        localStorage['lapidary.theme'] = attack;
    }""", ATTACK)
    visitor.page.reload()
    assert ATTACK in visitor.text(".user .text") and ATTACK in visitor.text(".error")
    visitor.page.click("#conversations .open >> nth=1")


def test_the_policy_stops_what_the_page_would_let_through(visit, server):
    visitor = visit(server)
    refused = visitor.page.evaluate("""() => {
        try { document.body.innerHTML += '<img src=x onerror="pwned=1">'; } catch (error) { return error.name; }
    }""")
    assert refused == "TypeError"
    visitor.page.evaluate("""() => new Promise((resolve) => {
        addEventListener('securitypolicyviolation', resolve);
        const image = document.createElement('img');
        image.src = 'https://evil.example/leak';
        document.body.append(image);
    })""")
    with pytest.raises(Exception, match="Failed to fetch"):
        visitor.page.evaluate("fetch('https://evil.example/leak')")
    blocked = visitor.page.evaluate("violations.splice(0)")
    assert any(item.startswith("img-src") for item in blocked)
    assert any(item.startswith("connect-src") for item in blocked)
    visitor.requests.clear()  # Chromium lists the requests that it then refuses to make.
    visitor.problems.clear()


def test_markdown(visitor):
    visitor.answers_with(stream({"content": "# Title\n\nSome **bold**, *thin* and `a_b_c` in snake_case, 2 * 3 * 4.\n\n"
                                            "- one\n- two\n  1. deep\n\n3. three\n4. four\n\n"
                                            "| a | b |\n|---|---|\n| 1 | **2** |\n\n"
                                            "```python\nif x:\n\ty = '**no**'\n```\n\n> said"}))
    visitor.ask("Hello")
    body = ".assistant > .markdown"
    assert visitor.text(body + " h3") == "Title"
    assert visitor.text(body + " strong >> nth=0") == "bold" and visitor.text(body + " em") == "thin"
    assert visitor.text(body + " p code") == "a_b_c"
    assert visitor.page.inner_text(body + " > p").endswith("in snake_case, 2 * 3 * 4.")
    assert visitor.page.locator(body + " > ul > li").count() == 2
    assert visitor.text(body + " ul ol li") == "deep"
    assert visitor.page.get_attribute(body + " > ol", "start") == "3"
    assert visitor.text(body + " td strong") == "2"
    assert visitor.page.text_content(body + " pre code") == "if x:\n\ty = '**no**'"
    assert visitor.text(body + " blockquote") == "said"


def test_tables_have_sides_and_tasks_have_boxes(visitor):
    visitor.answers_with(stream({"content": "| a | b | c |\n|---|:-:|--:|\n| 1 | 2 | 3 |\n\n- [x] done\n- [ ] open"}))
    visitor.ask("Hello")
    sides = visitor.page.eval_on_selector_all(".assistant td", "cells => cells.map(c => getComputedStyle(c).textAlign)")
    assert sides == ["left", "center", "right"]
    boxes = visitor.page.eval_on_selector_all(".assistant li input", "boxes => boxes.map(b => [b.checked, b.disabled])")
    assert boxes == [[True, True], [False, True]]
    assert visitor.text(".assistant li >> nth=1") == "open"


def test_formulas_are_set_and_prices_are_not(visitor):
    visitor.answers_with(stream({"content": r"It costs $5, not $6. Here $x_1^2$, \(\frac{a}{b}\) and **$a*b$**:" + "\n\n"
                                            "$$\n\\begin{pmatrix} 1 & 2 \\\\\n- 3 & 4 \\end{pmatrix}\n$$\n\n"
                                            r"\[ \sum_{k=0}^n \sqrt[3]{k} \ge \mathbb{R} \unknown \]" + "\n\n"
                                            r"`$code$` and $unclosed, \(x}\) is what it is"}))
    visitor.ask("Hello")
    body = ".assistant > .markdown"
    assert visitor.page.inner_text(body + " > p >> nth=0").startswith("It costs $5, not $6. Here")
    shapes = visitor.page.eval_on_selector_all(body + " math", """all => all.map((math) =>
        [math.getAttribute('display'), [...math.querySelectorAll('*')].map((node) => node.localName).join(' ')])""")
    assert shapes == [
        ["inline", "msubsup mi mn mn"], ["inline", "mfrac mi mi"], ["inline", "mi mo mi"],
        ["block", "mrow mo mtable mtr mtd mn mtd mn mtr mtd mo mn mtd mn mo"],
        ["block", "munderover mo mrow mi mo mn mi mroot mi mn mo mi mtext"]]
    assert visitor.page.text_content(body + " math >> nth=4") == "∑k=0nk3≥ℝ\\unknown"
    assert visitor.page.locator(body + " code").all_text_contents() == ["$code$", "x}"]
    assert "$unclosed" in visitor.page.inner_text(body + " > p >> nth=-1")


def test_hostile_formulas_are_shown_as_they_are(visitor):
    deep = "$" + "{" * 1500 + "x" + "}" * 1500 + "$"
    visitor.answers_with(stream({"content": deep + " and $" + "\\frac" * 500 + "$ and " + "$ a" * 3000}))
    visitor.ask("Hello")
    assert visitor.page.locator(".assistant math").count() == 0
    assert visitor.page.locator(".assistant .markdown code >> nth=0").text_content() == deep[1:-1]


def test_code_has_colours_and_stays_the_text_it_is(visitor):
    codes = {"python": "# why\ndef f(x):\n    return \"it's\" + 'if' * 3.5", "sql": "SELECT a FROM b -- c",
             "c++": "/* a */ int x = 'b'; // <b>no tag</b>", "unheard-of": "if (x) return 1;"}
    visitor.answers_with(stream({"content": "\n".join(f"```{name}\n{code}\n```" for name, code in codes.items())}))
    visitor.ask("Hello")
    assert visitor.page.locator(".assistant pre code").all_text_contents() == list(codes.values())
    marked = visitor.page.eval_on_selector_all(".assistant pre code", """all => all.map((code) =>
        [...code.querySelectorAll('span')].map((span) => span.className + ' ' + span.textContent))""")
    assert marked == [["comment # why", "word def", "word return", "string \"it's\"", "string 'if'", "number 3.5"],
                      ["word SELECT", "word FROM", "comment -- c"],
                      ["comment /* a */", "word int", "string 'b'", "comment // <b>no tag</b>"], []]


def test_links_open_elsewhere_and_tell_nothing(visitor):
    visitor.answers_with(stream({"content": "See [the docs](https://a.example/x?y=1), https://b.example/p. "
                                            "Not [this](javascript:alert(1)) or [that](data:text/html,x) `https://c.example`"}))
    visitor.ask("Hello")
    links = visitor.page.eval_on_selector_all(".assistant a", "all => all.map(a => [a.textContent, a.href, a.target, a.rel])")
    assert links == [["the docs", "https://a.example/x?y=1", "_blank", "noopener noreferrer"],
                     ["https://b.example/p", "https://b.example/p", "_blank", "noopener noreferrer"]]
    assert "[this](javascript:alert(1))" in visitor.text(".assistant .markdown >> nth=-1")


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


def test_every_sampling_setting_is_sent(visitor):
    asked = visitor.answers_with(stream({"content": "ok"}))
    visitor.setting(**{"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2,
                       "stop-at": "END\n\n###"})
    visitor.ask("Hello")
    sent = {name: asked[0][name] for name in ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "stop")}
    assert sent == {"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2,
                    "stop": ["END", "###"]}


def test_conversations_are_searched_and_imported(visitor, tmp_path):
    visitor.answers_with(stream({"content": "A quarry of marble"}), stream({"content": "Nothing"}))
    visitor.ask("First")
    visitor.page.click("#new")
    visitor.ask("Second")
    visitor.page.fill("#search", "MARBLE")
    assert visitor.page.locator("#conversations li").count() == 1
    visitor.page.fill("#search", "")
    assert visitor.page.locator("#conversations li").count() == 2
    file = tmp_path / "talk.json"
    file.write_text(json.dumps({"title": "Brought", "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": "5"},
        {"role": "assistant", "content": ATTACK}]}))
    visitor.page.set_input_files("#import-file", file)
    visitor.page.wait_for_selector("text=pwned=1")
    assert visitor.page.input_value("#title") == "Brought"
    assert visitor.page.input_value("#system") == "Be brief."
    assert visitor.page.locator("#conversations li").count() == 3
    file.write_text("[1]")
    visitor.page.set_input_files("#import-file", file)
    visitor.page.wait_for_selector("text=This file holds no conversation.")


def parts_of(message):
    """[(kind, bytes or text)] of a message that was sent."""
    found = []
    for part in message["content"]:
        if part["type"] == "image_url":
            head, _, data = part["image_url"]["url"].partition(";base64,")
            found.append((head, base64.b64decode(data)))
        elif part["type"] == "input_audio":
            found.append((part["input_audio"]["format"], base64.b64decode(part["input_audio"]["data"])))
        else:
            found.append((part["type"], part["text"]))
    return found


@pytest.mark.parametrize("way", ["chosen", "pasted", "dropped"])
def test_pictures_and_sounds_go_with_the_message(visitor, way):
    picture, sound = (MEDIA / "alpha.png").read_bytes(), (MEDIA / "short.wav").read_bytes()
    asked = visitor.answers_with(stream({"content": "A picture."}))
    if way == "chosen":
        visitor.page.set_input_files("#media-file", [MEDIA / "alpha.png", MEDIA / "short.wav"])
    else:
        visitor.page.evaluate("""([way, files]) => {
            const data = new DataTransfer();
            for (const [name, type, text] of files)
                data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, {type}));
            const options = {bubbles: true, cancelable: true};
            byId('prompt').dispatchEvent(way === 'pasted' ? new ClipboardEvent('paste', {...options, clipboardData: data}) :
                new DragEvent('drop', {...options, dataTransfer: data}));
        }""", [way, [("alpha.png", "image/png", base64.b64encode(picture).decode()),
                     ("short.wav", "audio/wav", base64.b64encode(sound).decode())]])
    visitor.page.wait_for_selector("#attached li >> nth=1")
    visitor.ask("What is it?")
    assert parts_of(asked[0]["messages"][0]) == [("data:image/png", picture), ("wav", sound), ("text", "What is it?")]
    assert visitor.page.locator("#attached li").count() == 0
    visitor.page.reload()
    assert visitor.page.evaluate("document.querySelector('.user .media img').complete")
    assert visitor.page.locator(".user .media audio").count() == 1
    visitor.ask("And now?")
    assert parts_of(asked[1]["messages"][0])[0] == ("data:image/png", picture), "it stays in the conversation"


def test_large_pictures_are_made_smaller_and_what_is_none_is_told(visitor, tmp_path):
    (tmp_path / "words.png").write_text("no picture")
    asked = visitor.answers_with(stream({"content": "ok"}))
    visitor.page.set_input_files("#media-file", [tmp_path / "words.png"])
    visitor.page.wait_for_selector("#toast")
    assert "words.png is neither a picture nor a sound." in visitor.text("#toast")
    data = visitor.page.evaluate("""() => {
        const canvas = Object.assign(document.createElement('canvas'), {width: 3200, height: 800});
        canvas.getContext('2d').fillRect(0, 0, 100, 100);
        return canvas.toDataURL('image/png').split(',')[1];
    }""")
    (tmp_path / "large.png").write_bytes(base64.b64decode(data))
    visitor.page.set_input_files("#media-file", [tmp_path / "large.png", MEDIA / "alpha.png"])
    visitor.page.wait_for_selector("#attached li >> nth=1")
    visitor.page.click("#attached button >> nth=1")
    visitor.page.press("#prompt", "Enter")  # A picture alone is a message too.
    visitor.wait()
    [(kind, sent)] = parts_of(asked[0]["messages"][0])
    assert kind == "data:image/jpeg" and sent[:2] == b"\xff\xd8"
    size = visitor.page.evaluate("(({naturalWidth, naturalHeight}) => [naturalWidth, naturalHeight])"
                                 "(document.querySelector('.media img'))")
    assert size == [1600, 400]
    assert visitor.page.input_value("#title") == "large.png"


def test_media_of_another_hand_are_data_or_nothing(visitor):
    visitor.page.evaluate("""() => {
        const media = ['https://evil.example/leak.png', 'javascript:pwned=1', 'data:text/html;base64,AAAA', 7, null]
            .map((url) => ({url, name: '<img src=x onerror=pwned=1>'}));
        localStorage['lapidary.conversation.a'] = JSON.stringify({messages: [{role: 'user', content: 'look', media}]});
        localStorage['lapidary.current'] = 'a';
    }""")
    visitor.page.reload()
    assert visitor.text(".user .text") == "look"
    assert visitor.page.locator(".media").count() == 0


def test_odd_answers_do_not_hang_the_page(visitor):
    for text in ("*" * 50_000, "`" * 50_001, "> " * 20_000, "- " * 20_000, " " * 100_000 + "|\n" + "-" * 50_000,
                 "#" + " " * 100_000 + "x", "|" * 50_000 + "\n" + "|" * 50_000, "*a " * 20_000, "`a`` " * 20_000,
                 "```\n" * 2_001, "\n" * 50_000, "1. a\n" * 2_000, "[" * 50_000, "[a](" * 20_000, "http://" * 10_000):
        visitor.answers_with(stream({"content": text}))
        began = time.monotonic()
        visitor.ask("Hello")
        assert time.monotonic() - began < 10, repr(text[:20])
        visitor.page.click("#new")


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


def test_answers_can_be_made_again_and_messages_edited_and_deleted(visitor):
    asked = visitor.answers_with(*[stream({"content": f"answer {number}"}) for number in range(1, 6)])
    visitor.ask("first")
    visitor.page.get_by_role("button", name="Answer again").click()
    visitor.page.wait_for_selector("text=answer 2")
    assert not visitor.page.is_visible("text=answer 1")
    visitor.ask("second")
    visitor.page.hover(".user >> nth=0")
    visitor.page.get_by_role("button", name="Edit").first.click()
    visitor.page.get_by_label("Edit the message").fill("first, edited")
    visitor.page.locator(".editing").get_by_role("button", name="Send").click()
    visitor.page.wait_for_selector("text=answer 4")
    assert [message["content"] for message in asked[-1]["messages"]] == ["first, edited"]
    visitor.page.hover(".assistant")
    visitor.page.locator(".assistant").get_by_role("button", name="Edit").click()
    visitor.page.get_by_label("Edit the message").fill("put into its mouth")
    visitor.page.get_by_role("button", name="Save").click()
    visitor.ask("third")
    assert [message["content"] for message in asked[-1]["messages"]] == ["first, edited", "put into its mouth", "third"]
    visitor.page.hover(".user >> nth=1")
    visitor.page.locator(".user >> nth=1").get_by_role("button", name="Delete").click()
    assert not visitor.page.is_visible("text=third")
    visitor.page.click("text=Undo")
    assert visitor.page.is_visible("text=third")


def test_conversations_are_listed_opened_and_deleted(visitor):
    visitor.answers_with(stream({"content": "about cats"}), stream({"content": "about dogs"}))
    visitor.ask("Cats?")
    visitor.page.click("#new")
    assert not visitor.page.is_visible(".message")
    visitor.ask("Dogs?")
    assert visitor.page.locator("#conversations li").count() == 2
    visitor.page.click("#conversations >> text=Cats?")
    assert "about cats" in visitor.text("#messages")
    visitor.page.reload()
    assert "about cats" in visitor.text("#messages"), "the open one is remembered"
    visitor.page.locator("#conversations li.current").get_by_role("button", name="Delete").click()
    assert visitor.page.locator("#conversations li").count() == 1
    visitor.page.click("text=Undo")
    assert "about cats" in visitor.text("#messages")
    visitor.page.locator("#conversations li.current").get_by_role("button", name="Delete").click()
    visitor.page.reload()
    assert [conversation["title"] for conversation in visitor.stored()] == ["Dogs?"]


def test_two_conversations_answer_at_once(visit, endless_server):
    visitor = visit(endless_server)
    for title in ("one", "two"):
        visitor.send(title)
        visitor.page.wait_for_selector("#stop", state="visible")
        visitor.page.click("#new")
    assert visitor.page.locator("#conversations .busy").count() == 2
    assert visitor.page.is_visible("#send"), "a third could be begun"
    for title in ("one", "two"):
        visitor.page.click(f"#conversations >> text={title}")
        visitor.page.click("#stop")
        visitor.wait()
    endless_server.wait_until_idle()


def test_copies_and_exports(visit, server, tmp_path):
    visitor = visit(server, permissions=["clipboard-read", "clipboard-write"])
    visitor.answers_with(stream({"content": "the answer"}))
    visitor.setting(system="Be brief.")
    visitor.ask("the question")
    visitor.page.click("#open-settings")
    visitor.page.click("#copy-all")
    visitor.page.wait_for_selector("text=Copied")
    assert visitor.page.evaluate("navigator.clipboard.readText()") == (
        "System: Be brief.\n\nYou: the question\n\nModel: the answer")
    with visitor.page.expect_download() as download:
        visitor.page.click("#export")
    assert download.value.suggested_filename == "the-question.json"
    download.value.save_as(tmp_path / "export.json")
    exported = json.loads((tmp_path / "export.json").read_text())
    assert exported["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the question"},
                                    {"role": "assistant", "content": "the answer"}]
    assert server.post(CHAT, json={"messages": exported["messages"], "max_tokens": 1}).status_code == 200


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


def test_a_page_of_another_origin_cannot_drive_the_server(browser, server, start):
    elsewhere = start()
    trusting = start("--allowed-origins", elsewhere.url)
    context = browser.new_context(bypass_csp=True)  # It is not our page that is locked out, but what it stands for.
    page = context.new_page()
    page.goto(elsewhere.url)

    def post(target, mode):
        # Text is what a page may send anywhere without asking first.
        return page.evaluate("""async ([url, mode]) => {
            const body = JSON.stringify({messages: [{role: 'user', content: 'Hello'}], max_tokens: 3});
            const response = await fetch(url, {method: 'POST', mode, body, headers: {'Content-Type': 'text/plain'}})
                .catch((error) => error);
            return response instanceof Error ? response.message : response.status;
        }""", [target.url + CHAT, mode])

    def asked(target):
        return target.metric("generation_tokens_total") or 0

    for target, reads, works in ((server, "Failed to fetch", False), (trusting, 200, True)):
        before = asked(target)
        post(target, "no-cors")
        assert (asked(target) > before) == works
        assert post(target, "cors") == reads
    context.close()
    assert elsewhere.stop() == 0 and trusting.stop() == 0


def test_a_name_rebound_to_this_machine_gets_nothing(browser, server):
    port = server.url.rsplit(":", 1)[1]
    with browser.browser_type.launch(executable_path=browser.chromium_path,
                                     args=["--host-resolver-rules=MAP rebound.example 127.0.0.1"]) as other:
        page = other.new_page()
        response = page.goto(f"http://rebound.example:{port}/")
        assert response.status == 403
        assert "rebound.example" in page.inner_text("body")
        assert page.goto(f"http://localhost:{port}/").status == 200
