"""A browser window on the chat page, and answers to give it in place of the server's."""

import json
import os
import re
import time

CHAT = "/v1/chat/completions"
# Seconds; under a sanitizer (./lapidary test --sanitize) everything takes many times as long.
PATIENCE = 300 if os.environ.get("LAPIDARY_SANITIZED") else 30
ATTACK = "<script>document.title='pwned';pwned=1</script><img src=x onerror=pwned=1><svg/onload=pwned=1>"
WATCHER = """
    window.violations = [];
    addEventListener('securitypolicyviolation', (event) => violations.push(event.violatedDirective + ' ' + event.blockedURI));
"""


def stream(*deltas, finish="stop", usage=(11, 7), done=True):
    """A response to a streaming request, as the server would write it."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return body + ("data: [DONE]\n\n" if done else "")


def call(name, arguments, index=0, call_id="call_1"):
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function",
                            "function": {"name": name, "arguments": arguments}}]}


class Visitor:
    """A browser window on the page. Whatever must never happen is collected, and looked at when the test ends."""

    def __init__(self, browser, url, **options):
        self.url = url
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.context.set_default_timeout(PATIENCE * 1000)
        self.page = self.context.new_page()
        self.page.add_init_script(WATCHER)
        self.problems = []
        self.requests = []
        self.expected_problems = []
        self.allowed = []  # addresses elsewhere that the page may ask
        self.page.on("console", lambda message: self.problems.append(f"console: {message.text}")
                     if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("dialog", lambda dialog: (self.problems.append("a dialog opened"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    def send(self, text):
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")

    def wait(self):
        self.page.wait_for_selector("#stop", state="hidden")

    def ask(self, text):
        self.send(text)
        self.wait()

    def wait_for_words(self, more_than=20):
        """Until so much of the answer is there; says how much. (The page's own policy forbids what waits inside it.)"""
        deadline = time.monotonic() + PATIENCE
        while (num_shown := len(self.text(".assistant > .markdown"))) <= more_than:
            assert time.monotonic() < deadline, "no answer comes"
            time.sleep(0.02)
        return num_shown

    def answers_with(self, *bodies, status=200):
        """The next requests are answered by the test; returns the list that their bodies end up in."""
        asked, left = [], list(bodies)

        def answer(route):
            asked.append(route.request.post_data_json)
            body = left.pop(0) if len(left) > 1 else left[0]
            kind = "text/event-stream" if status == 200 else "application/json"
            route.fulfill(status=status, content_type=kind, body=body)

        self.page.unroute("**" + CHAT)
        self.page.route("**" + CHAT, answer)
        return asked

    def setting(self, **values):
        self.page.click("#open-settings")
        for name, value in values.items():
            if isinstance(value, bool):
                self.page.set_checked("#" + name, value)
            else:
                self.page.fill("#" + name, str(value))
        self.page.click("#close-settings")

    def text(self, selector):
        return self.page.inner_text(selector)

    def stored(self):
        """The conversations that the browser keeps."""
        kept = self.page.evaluate("({...localStorage})")
        return [json.loads(value) for key, value in kept.items() if key.startswith("lapidary.conversation.")]

    def check(self):
        origin = re.match(r"https?://[^/]+", self.url)[0]
        known = (origin + "/", "data:", "blob:" + origin, *self.allowed)
        foreign = [url for url in self.requests if not url.startswith(known)]
        assert foreign == [], "the page asked somebody else"
        assert self.page.evaluate("violations") == []
        assert self.page.evaluate("typeof pwned") == "undefined"
        problems = [problem for problem in self.problems
                    if not any(expected in problem for expected in self.expected_problems)]
        assert problems == []
