"""Text and code files on the chat page: their text goes with the message."""

import base64

import pytest

from page_visitor import stream


def put(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


def test_text_files_go_with_the_message(visitor, tmp_path):
    asked = visitor.answers_with(stream({"content": "ok"}))
    code = put(tmp_path, "fix me.py", b"def f():\n    return 1\n")
    notes = put(tmp_path, "notes.md", "\u201cA\u201d\n```\nx\n```\n````\n".encode())
    wide = put(tmp_path, "wide.ts", "let \u00e4 = 1;".encode("utf-16"))  # .ts is a video to browsers
    visitor.page.set_input_files("#media-file", [code, notes, wide])
    visitor.page.wait_for_selector("#attached li >> nth=2")
    visitor.page.click("[aria-label='Remove wide.ts']")
    visitor.page.set_input_files("#media-file", [wide])
    visitor.page.wait_for_selector("#attached li >> nth=2")
    visitor.ask("What is wrong?")
    sent = ("fix me.py\n```py\ndef f():\n    return 1\n```\n\n"
            "notes.md\n`````md\n\u201cA\u201d\n```\nx\n```\n````\n`````\n\n"
            "wide.ts\n```ts\nlet \u00e4 = 1;\n```\n\nWhat is wrong?")
    assert asked[0]["messages"] == [{"role": "user", "content": sent}]
    assert visitor.page.locator("#attached li").count() == 0
    visitor.page.reload()
    assert visitor.text(".user > .text") == "What is wrong?"
    assert visitor.text(".file summary >> nth=0").split() == ["fix", "me.py", "22", "B"]
    assert not visitor.page.is_visible(".file pre >> nth=0")
    visitor.page.click(".file summary >> nth=0")
    assert visitor.text(".file pre >> nth=0") == "def f():\n    return 1\n"
    visitor.ask("And now?")
    assert asked[1]["messages"][0]["content"] == sent, "they stay in the conversation"


def test_a_file_beside_a_picture_is_a_part_of_the_text(visitor, tmp_path):
    asked = visitor.answers_with(stream({"content": "ok"}))
    picture = visitor.page.evaluate("() => Object.assign(document.createElement('canvas')).toDataURL('image/png').split(',')[1]")
    visitor.page.set_input_files("#media-file", [put(tmp_path, "a.png", base64.b64decode(picture)), put(tmp_path, "a.svg", b"<svg/>")])
    visitor.page.wait_for_selector("#attached li >> nth=1")
    visitor.page.press("#prompt", "Enter")
    visitor.wait()
    kinds = [part["type"] for part in asked[0]["messages"][0]["content"]]
    assert kinds == ["image_url", "text"]
    assert asked[0]["messages"][0]["content"][1]["text"] == "a.svg\n```svg\n<svg/>\n```"
    assert visitor.page.input_value("#title") == "a.png"


@pytest.mark.parametrize("name,content,told", [
    ("paper.pdf", b"%PDF-1.7\n%\xe2\xe3", "paper.pdf is a PDF, which this page does not read."),
    ("paper.txt", b"%PDF-1.7 under another name", "paper.txt is a PDF"),
    ("data.zip", b"PK\x03\x04\x00\x00", "data.zip is neither text, nor an image, nor audio."),
    ("latin.txt", b"caf\xe9", "latin.txt is neither text"),
    ("empty.txt", b"", "empty.txt is empty."),
    ("long.txt", b"a" * ((1 << 20) + 1), "long.txt is larger than 1 MB"),
    ("long.bin", bytes(range(256)) * 8192, "long.bin is neither text"),
], ids=lambda value: value if isinstance(value, str) and "." in value and " " not in value else "")
def test_what_is_no_text_is_told(visitor, tmp_path, name, content, told):
    visitor.page.set_input_files("#media-file", [put(tmp_path, name, content)])
    visitor.page.wait_for_selector("#toast")
    assert told in visitor.text("#toast")
    assert visitor.page.locator("#attached li").count() == 0
