"""Conversations on the chat page: kept, listed, searched, edited, exported, imported."""

import base64
import json
import re

from page_visitor import ATTACK, CHAT, stream


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


def test_all_conversations_are_exported_and_brought_back(visitor, tmp_path):
    visitor.answers_with(*[stream({"content": f"answer {number}"}) for number in range(1, 4)])
    picture = visitor.page.evaluate("document.createElement('canvas').toDataURL('image/png').split(',')[1]")
    (tmp_path / "a.png").write_bytes(base64.b64decode(picture))
    (tmp_path / "a.py").write_text("x = 1")
    visitor.page.set_input_files("#media-file", [tmp_path / "a.png", tmp_path / "a.py"])
    visitor.page.wait_for_selector("#attached li >> nth=1")
    visitor.setting(system="Be brief.")
    visitor.ask("First")
    visitor.page.get_by_role("button", name="Answer again").click()
    visitor.wait()
    visitor.page.click("#new")
    visitor.ask("Second")
    before = sorted(visitor.stored(), key=lambda kept: kept["id"])
    visitor.page.click("#open-settings")
    with visitor.page.expect_download() as download:
        visitor.page.click("#export-all")
    assert re.fullmatch(r"conversations-\d{4}-\d\d-\d\d\.json", download.value.suggested_filename)
    download.value.save_as(tmp_path / "all.json")
    visitor.page.set_input_files("#import-file", tmp_path / "all.json")
    visitor.page.wait_for_selector("text=This file holds no conversation that is not here.")
    visitor.page.evaluate("localStorage.clear()")
    visitor.page.reload()
    visitor.page.set_input_files("#import-file", tmp_path / "all.json")
    visitor.page.wait_for_selector("text=2 conversations imported")
    assert sorted(visitor.stored(), key=lambda kept: kept["id"]) == before, "with versions, pictures, files and settings"
    visitor.page.click("#conversations >> text=First")
    assert visitor.text(".assistant .versions").endswith("2/2")
    (tmp_path / "all.json").write_text(json.dumps({"conversations": [3, None, {"id": "a b"}, {"messages": [{"role": "user"}]},
                                                                     {"id": "../x", "messages": [{"role": "user", "content": ATTACK}]}]}))
    visitor.page.set_input_files("#import-file", tmp_path / "all.json")
    visitor.page.wait_for_selector("text=2 conversations imported")


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
