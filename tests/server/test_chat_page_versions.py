"""Versions of answers and questions on the chat page: made again without losing the old ones."""

import json

from page_visitor import stream


def answers(*texts):
    return [stream({"content": text}) for text in texts]


def again(visitor, nth=-1):
    visitor.page.locator(f".assistant >> nth={nth}").hover()
    visitor.page.locator(f".assistant >> nth={nth}").get_by_role("button", name="Answer again").click()
    visitor.wait()


def turn(visitor, way, who="assistant", nth=-1):
    visitor.page.locator(f".{who} >> nth={nth}").get_by_role("button", name=f"{way} version").click()


def shown(visitor):
    return visitor.page.locator(".message > .text, .message > .markdown:last-of-type, .assistant > .markdown").all_inner_texts()


def test_an_answer_made_again_is_another_version(visitor):
    asked = visitor.answers_with(*answers("one", "two", "three", "about two"))
    visitor.ask("Hello")
    assert visitor.page.locator(".versions").count() == 0
    again(visitor)
    again(visitor)
    assert [len(body["messages"]) for body in asked] == [1, 1, 1], "no version is told of another"
    assert visitor.text(".assistant .versions").endswith("3/3")
    assert visitor.page.get_by_role("button", name="Next version").is_disabled()
    turn(visitor, "Previous")
    assert shown(visitor) == ["Hello", "two"]
    assert visitor.page.evaluate("document.activeElement.ariaLabel") == "Previous version"
    visitor.page.reload()
    assert shown(visitor) == ["Hello", "two"], "the version that was shown is kept, and so are the others"
    visitor.ask("And?")
    assert [message["content"] for message in asked[-1]["messages"]] == ["Hello", "two", "And?"]
    turn(visitor, "Previous", nth=0)
    assert shown(visitor) == ["Hello", "one"]
    assert visitor.page.get_by_role("button", name="Previous version").is_disabled()
    turn(visitor, "Next", nth=0)
    assert shown(visitor) == ["Hello", "two", "And?", "about two"], "what followed a version comes back with it"


def test_an_answer_in_the_middle_is_made_again(visitor):
    asked = visitor.answers_with(*answers("one", "two", "another one"))
    visitor.ask("first")
    visitor.ask("second")
    again(visitor, nth=0)
    assert [message["content"] for message in asked[-1]["messages"]] == ["first"]
    assert shown(visitor) == ["first", "another one"]
    turn(visitor, "Previous")
    assert shown(visitor) == ["first", "one", "second", "two"]


def test_enter_sends_an_edit_and_the_old_question_stays(visitor):
    asked = visitor.answers_with(*answers("one", "two", "three"))
    visitor.ask("first")
    edit = visitor.page.get_by_label("Edit the message")
    visitor.page.hover(".user")
    visitor.page.locator(".user").get_by_role("button", name="Edit").click()
    edit.fill("second")
    edit.press("Shift+Enter")
    visitor.page.keyboard.type("line")
    edit.press("Enter")
    visitor.wait()
    assert asked[1]["messages"] == [{"role": "user", "content": "second\nline"}]
    assert shown(visitor) == ["second\nline", "two"]
    turn(visitor, "Previous", "user")
    assert shown(visitor) == ["first", "one"]
    visitor.page.hover(".user")
    visitor.page.locator(".user").get_by_role("button", name="Edit").click()
    edit.fill("never mind")
    edit.press("Escape")
    assert shown(visitor) == ["first", "one"] and len(asked) == 2
    visitor.page.hover(".user")
    visitor.page.locator(".user").get_by_role("button", name="Edit").click()
    edit.press("Enter")
    visitor.wait()
    assert shown(visitor) == ["first", "three"], "a question that did not change gets another answer"
    assert visitor.text(".user .versions").endswith("1/2") and visitor.text(".assistant .versions").endswith("2/2")


def test_an_edited_answer_is_saved_by_ctrl_enter(visitor):
    visitor.answers_with(*answers("one"))
    visitor.ask("first")
    visitor.page.hover(".assistant")
    visitor.page.locator(".assistant").get_by_role("button", name="Edit").click()
    edit = visitor.page.get_by_label("Edit the message")
    edit.fill("put into")
    edit.press("Enter")
    visitor.page.keyboard.type("its mouth")
    edit.press("Control+Enter")
    assert visitor.stored()[0]["messages"][1]["content"] == "put into\nits mouth"


def test_a_deleted_version_makes_room_for_its_neighbour(visitor):
    visitor.answers_with(*answers("one", "two", "three"))
    visitor.ask("Hello")
    again(visitor)
    again(visitor)
    turn(visitor, "Previous")
    delete = visitor.page.locator(".assistant").get_by_role("button", name="Delete")
    delete.click()
    assert shown(visitor) == ["Hello", "one"] and visitor.text(".versions").endswith("1/2")
    visitor.page.click("text=Undo")
    assert shown(visitor) == ["Hello", "two"] and visitor.text(".versions").endswith("2/3")
    turn(visitor, "Previous")
    delete.click()
    assert shown(visitor) == ["Hello", "two"] and visitor.text(".versions").endswith("1/2")
    delete.click()
    assert shown(visitor) == ["Hello", "three"] and visitor.page.locator(".versions").count() == 0


def test_a_failed_answer_is_no_version_unless_it_said_something(visitor):
    visitor.expected_problems = ["503 (Service Unavailable)"]
    visitor.answers_with(json.dumps({"error": {"message": "full"}}), status=503)
    visitor.ask("Hello")
    visitor.page.click("text=Try again")
    visitor.wait()
    visitor.answers_with(stream({"content": "half an ans"}, done=False), *answers("whole"))
    visitor.page.click("text=Try again")
    visitor.wait()
    assert visitor.page.locator(".versions").count() == 0
    visitor.page.click("text=Try again")
    visitor.wait()
    assert shown(visitor) == ["Hello", "whole"]
    turn(visitor, "Previous")
    assert shown(visitor) == ["Hello", "half an ans"]


def test_versions_written_by_another_hand_are_harmless(visitor):
    visitor.page.evaluate("""() => {
        const answer = (content, versions) => ({role: 'assistant', content, versions});
        let deep = [answer('deepest')];
        for (let depth = 0; depth < 3000; ++depth) deep = [answer('deep', {at: 0, tails: [null, deep]})];
        const odd = [{at: 7, tails: [null, 3]}, {at: 0, tails: [null]}, {at: 1, tails: [[{role: 'king'}], null]}, {tails: 'x'}, 5];
        const messages = [{role: 'user', content: 'look'}, ...odd.map((versions) => answer('odd', versions)), ...deep];
        localStorage['lapidary.conversation.a'] = JSON.stringify({messages});
        localStorage['lapidary.current'] = 'a';
    }""")
    visitor.page.reload()
    assert shown(visitor) == ["look"] + ["odd"] * 5 + ["deep"]
    assert visitor.page.locator(".versions").count() == 1
    turn(visitor, "Next")
    assert shown(visitor) == ["look"] + ["odd"] * 5 + ["deep"]
