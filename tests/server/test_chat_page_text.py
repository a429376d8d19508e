"""What a model writes, on the chat page: Markdown, formulas, code, links, thoughts."""

import time

from page_visitor import stream


def test_thinking_is_folded(visitor):
    visitor.answers_with(stream({"reasoning_content": "Let me think\nof it."}, {"content": "The answer is 4."}))
    visitor.ask("2 + 2?")
    assert visitor.page.is_visible("details.thought summary")
    assert not visitor.page.is_visible("details.thought .markdown")
    assert "Let me think" not in visitor.text(".assistant")
    visitor.page.click("details.thought summary")
    assert "Let me think" in visitor.text("details.thought .markdown")
    assert "The answer is 4." in visitor.text(".assistant")


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


def test_struck_words(visitor):
    visitor.answers_with(stream({"content": "A ~~wrong **bold**~~ right word, ~one~ and ~~ two ~~ and ~~open"}))
    visitor.ask("Hello")
    assert visitor.page.locator(".assistant s").all_inner_texts() == ["wrong bold"]
    assert visitor.text(".assistant s strong") == "bold"
    assert visitor.text(".assistant > .markdown") == "A wrong bold right word, ~one~ and ~~ two ~~ and ~~open"


def test_labels_stand_beside_the_code_and_copy_it(visit, server):
    visitor = visit(server, permissions=["clipboard-read", "clipboard-write"])
    visitor.answers_with(stream({"content": "```python\n" + "x = 1  # " + "long " * 60 + "\n```\n\n```\nplain\n```"}))
    visitor.ask("Hello")
    for nth in (0, 1):
        bar = visitor.page.locator(f".fence-bar >> nth={nth}").bounding_box()
        code = visitor.page.locator(f".fence pre >> nth={nth}").bounding_box()
        assert bar["y"] + bar["height"] <= code["y"], "the labels cover no code"
    assert visitor.page.locator(".fence-bar span").all_inner_texts() == ["python", ""]
    visitor.page.get_by_role("button", name="Copy the python code").click()
    visitor.page.wait_for_selector("text=Copied")
    assert visitor.page.evaluate("navigator.clipboard.readText()").startswith("x = 1  # long ")
    visitor.page.get_by_role("button", name="Copy the code").click()
    visitor.page.wait_for_function("() => navigator.clipboard.readText().then((text) => text === 'plain')")


def test_wide_tables_scroll_on_a_phone(visit, server):
    visitor = visit(server, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    heads = "|".join(["Quantisation"] * 8)
    visitor.answers_with(stream({"content": f"|{heads}|\n" + "|-" * 8 + "|\n" + "|some words" * 8 + "|\n\n|a|b|\n|-|-|\n|1|2|"}))
    visitor.ask("Hello")
    widths = visitor.page.eval_on_selector_all(".wide", "all => all.map((box) => [box.scrollWidth, box.clientWidth])")
    assert widths[0][0] > 2 * widths[0][1] and widths[1][0] == widths[1][1]
    lines = visitor.page.eval_on_selector_all(".wide th", """all => all.map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map((box) => box.top)).size;
    })""")
    assert set(lines) == {1}, "no word is broken"
    assert visitor.page.evaluate("thread.scrollWidth") <= 360, "the page itself does not scroll sideways"
    visitor.page.get_by_role("region", name="Table").first.focus()
    visitor.page.keyboard.press("ArrowRight")
    visitor.page.wait_for_function("() => document.querySelector('.wide').scrollLeft > 0")  # with keys too


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


def test_odd_answers_do_not_hang_the_page(visitor):
    def seconds(text):
        visitor.answers_with(stream({"content": text}))
        began = time.monotonic()
        visitor.ask("Hello")
        taken = time.monotonic() - began
        visitor.page.click("#new")
        return taken

    plain = seconds("All is well. " * 8_000)  # how fast this machine is just now
    for text in ("*" * 50_000, "`" * 50_001, "> " * 20_000, "- " * 20_000, " " * 100_000 + "|\n" + "-" * 50_000,
                 "#" + " " * 100_000 + "x", "|" * 50_000 + "\n" + "|" * 50_000, "*a " * 20_000, "`a`` " * 20_000,
                 "```\n" * 2_001, "\n" * 50_000, "1. a\n" * 2_000, "[" * 50_000, "[a](" * 20_000, "http://" * 10_000):
        assert seconds(text) < 10 + 20 * plain, repr(text[:20])
