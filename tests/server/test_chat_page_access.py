"""The chat page for those who do not see it or have no mouse: axe-core finds nothing wrong in any state of it."""

import pathlib

import pytest

from page_faults import violations
from page_visitor import call, stream

MEDIA = pathlib.Path(__file__).resolve().parent.parent / "data" / "media"
SIGHTS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True},
}
EVERYTHING = ("# Title\n\nSome **bold**, ~~struck~~ and `code` with $x^2$ and [a link](https://a.example).\n\n"
              "- [x] done\n- [ ] open\n\n1. one\n   - deep\n\n> said\n\n---\n\n"
              "| " + "a long heading | " * 9 + "\n" + "|---" * 9 + "|\n" + "| cell " * 9 + "|\n\n"
              "```python\ndef f():  # why\n    return 'text' * 3\n```\n\n```html\n<p>Hello</p>\n```\n\n$$\\frac{a}{b}$$")


@pytest.mark.parametrize("sight", SIGHTS)
def test_axe_finds_nothing(visit, server, sight):
    visitor = visit(server, reduced_motion="reduce", **SIGHTS[sight])
    page = visitor.page
    found = violations(visitor, "empty")
    visitor.answers_with(stream({"reasoning_content": "I think."}, {"content": EVERYTHING}, usage=(900, 100)),
                         stream({"content": EVERYTHING}, call("f", '{"key": [1, 2]}'), finish="tool_calls"),
                         stream({"content": "half an ans"}, done=False))
    page.set_input_files("#media-file", [MEDIA / "alpha.png", MEDIA / "short.wav", pathlib.Path(__file__)])
    page.wait_for_selector("#attached li >> nth=2")
    page.fill("#prompt", "Look")
    found += violations(visitor, "attached")
    page.press("#prompt", "Enter")
    visitor.wait()
    page.click("summary:has-text('Thought')")
    page.click("summary:has-text('.py')")
    found += violations(visitor, "answer")
    page.get_by_role("button", name="Answer again").click()
    visitor.wait()
    page.wait_for_selector(".call textarea")
    found += violations(visitor, "call")
    page.get_by_label("Result of f").fill("5")
    page.get_by_role("button", name="Send the result").click()
    visitor.wait()
    page.wait_for_selector(".error")
    page.locator(".user").hover()
    page.locator(".user").get_by_role("button", name="Edit").click()
    found += violations(visitor, "error and edit")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Preview").first.click()
    page.frame_locator("iframe").locator("text=Hello").wait_for()
    found += violations(visitor, "preview")
    page.click("#close-preview")
    if sight == "phone":
        page.click("#open-sidebar")
        found += violations(visitor, "conversations")
        page.click("#close-sidebar")
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    page.click("#save-prompt")
    page.fill("#top_p", "7")
    page.fill("#tools", "[{")
    found += violations(visitor, "settings")
    page.evaluate("byId('settings').scrollTop = 1e6")
    page.click("#change-key")
    page.wait_for_selector("#key-dialog[open]")
    found += violations(visitor, "key")
    page.click("#cancel-key")
    page.evaluate("takeSettings(); toast('Message deleted', 'Undo', () => {})")
    found += violations(visitor, "toast")
    assert found == [], "\n".join(["", *found])


def test_axe_finds_what_is_wrong(visit, server):
    visitor = visit(server, color_scheme="light")
    visitor.page.wait_for_selector("#model-name:has-text('tiny')")  # what is loaded writes the empty thread anew
    visitor.page.evaluate("""() => {
        const faint = Object.assign(document.createElement('p'), {textContent: 'Nobody can read this.'});
        faint.style.color = '#c8c8c8';
        byId('messages').append(faint, document.createElement('button'));
    }""")
    found = "\n".join(violations(visitor, "spoilt"))
    assert "color-contrast" in found and "button-name" in found


def test_messages_are_headed_by_who_speaks(visitor):
    visitor.answers_with(stream({"content": "# Title\n\nText"}))
    visitor.ask("Hello")
    headings = visitor.page.eval_on_selector_all("main :is(h1, h2, h3)", "all => all.map((h) => h.localName + ' ' + h.textContent)")
    assert headings == ["h1 Hello", "h2 You", "h2 Model", "h3 Title"]
    visitor.page.get_by_role("button", name="Answer again").click()
    visitor.wait()
    assert visitor.page.get_by_role("group", name="Versions").inner_text().split() == ["Version", "2/2"]
