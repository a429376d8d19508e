"""Takes docs/chat-page.png: the chat page on a running server, light, dark and on a phone.

    ./lapidary serve MODEL --port 8000 &
    .venv/bin/python3 tools/chat_page_screenshot.py --url http://127.0.0.1:8000 --out docs/chat-page.png

Needs Chromium and tests/requirements.txt. The conversation is a real one, with the model that is served.
"""

import argparse
import base64
import shutil

from playwright.sync_api import sync_playwright

FRAME = """
<style>
  body {{ margin: 0; padding: 28px; background: #d9d5cc; display: flex; gap: 24px; align-items: center; width: max-content; }}
  img {{ display: block; border-radius: 12px; box-shadow: 0 8px 30px rgb(0 0 0 / .25); }}
</style>
{images}
"""


class Window:
    def __init__(self, browser, url, width, height, scheme):
        self.page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page.goto(url)
        self.page.wait_for_selector("#model-name:not([hidden])", state="attached")

    def settings(self, thinking, tools=False):
        self.page.click("#open-settings")
        self.page.fill("#temperature", "0")
        self.page.set_checked("#thinking", thinking)
        if tools:
            self.page.click("#example-tool")
        self.page.click("#close-settings")

    def ask(self, text):
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        self.page.wait_for_selector("#stop", state="hidden")

    def picture(self):
        self.page.mouse.move(1, 1)
        self.page.evaluate("document.activeElement.blur(); byId('thread').scrollTop = 0; byId('latest').hidden = true;")
        self.page.wait_for_timeout(200)
        return self.page.screenshot()


def use_tools(window):
    """A question that needs a tool, its result, and the answer."""
    window.settings(thinking=True, tools=True)
    window.ask("What is the weather in Oslo?")
    window.page.get_by_label("Result of").fill('{"sky": "sunny", "temperature": 21}')
    window.page.get_by_role("button", name="Send the result").click()
    window.page.wait_for_selector("#stop", state="hidden")


def take(browser, url):
    light = Window(browser, url, 1000, 700, "light")
    light.ask("What can you do?")
    light.page.click("#new")
    light.ask("Tell me a story about a fox.")
    light.page.click("#new")
    use_tools(light)
    dark = Window(browser, url, 360, 700, "dark")
    dark.settings(thinking=True)
    dark.ask("What is 348 + 275?")
    dark.page.click("summary")
    dark.settings(thinking=False)
    dark.ask("Tell me a story.")
    return [light.picture(), dark.picture()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--out", default="docs/chat-page.png")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.chromium)
        pictures = take(browser, arguments.url)
        images = "".join(f'<img src="data:image/png;base64,{base64.b64encode(picture).decode()}">' for picture in pictures)
        page = browser.new_page(viewport={"width": 1460, "height": 760})
        page.set_content(FRAME.format(images=images))
        page.locator("body").screenshot(path=arguments.out)
        browser.close()


if __name__ == "__main__":
    main()
