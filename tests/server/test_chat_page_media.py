"""Pictures and sounds on the chat page."""

import base64
import pathlib

import pytest

from page_visitor import stream

MEDIA = pathlib.Path(__file__).resolve().parent.parent / "data" / "media"


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
    assert "words.png is neither an image nor audio." in visitor.text("#toast")
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
