"""`lapidary chat` over pipes and on a terminal. Usage: chat_command_test.py BINARY"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import termios
import time

import command_harness
from seeing_checkpoint import make_seeing_checkpoint

MEDIA = pathlib.Path(__file__).resolve().parent / "data" / "media"


class ChatTest(command_harness.CommandTest):
    def setUp(self):
        # Never stops by itself and says nothing but text.
        self.endless = self.variant("endless", do_sample=True,
                                    suppress_tokens=command_harness.SPECIAL_IDS)
        self.saved = self.scratch / "saved.json"
        self.saved.unlink(missing_ok=True)

    def chat(self, *lines, arguments=("--max-tokens", "8")):
        result = self.run_lapidary("chat", self.endless, "--stats", "--seed", "1", *arguments,
                                   input="\n".join(lines).encode())
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.decode(), result.stderr.decode()

    def messages(self):
        return json.loads(self.saved.read_text())

    def roles(self):
        return [message["role"] for message in self.messages()]

    def test_turns_are_kept_and_answers_are_printed(self):
        stdout, stderr = self.chat("Hello", "  And now?  ", f"/save {self.saved}")
        self.assertEqual(self.roles(), ["user", "assistant"] * 2)
        messages = self.messages()
        self.assertEqual(messages[0]["content"], "Hello")
        self.assertEqual(messages[2]["content"], "And now?")
        for answer in (messages[1], messages[3]):
            self.assertIn(answer["content"], stdout)
        self.assertEqual(len(re.findall(r"8 tokens, [0-9.]+ tokens/s", stderr)), 2)

    def test_the_next_turn_resumes_in_the_prefix_cache(self):
        _, stderr = self.chat("Hello, this is a rather long message to begin with.", "And now?")
        cached = [int(count) for count in re.findall(r"(\d+) of \d+ prompt tokens", stderr)]
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], 50)

    def test_a_message_is_answered_again(self):
        stdout, stderr = self.chat("/retry", "Hello", "And now?", "/retry", f"/save {self.saved}")
        self.assertIn("there is no message to answer again", stderr)
        self.assertEqual(self.roles(), ["user", "assistant"] * 2)
        messages = self.messages()
        self.assertEqual(messages[2]["content"], "And now?")
        self.assertEqual(len(re.findall(r"8 tokens, [0-9.]+ tokens/s", stderr)), 3)
        self.assertIn(messages[3]["content"], stdout)

    def test_saved_messages_are_gone_on_with(self):
        self.chat("/system Be brief.", "Hello", f"/save {self.saved}")
        before = self.messages()
        _, stderr = self.chat(f"/load {self.saved}", "And now?", f"/save {self.saved}")
        self.assertIn("loaded 3 messages of", stderr)
        self.assertEqual(self.messages()[:3], before)
        self.assertEqual(self.roles(), ["system", "user", "assistant", "user", "assistant"])
        for text, problem in (("[", "not valid JSON"), ("{}", "no list of messages"),
                              ('[{"role": "king", "content": "x"}]', "message 1 is of no"),
                              ('[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]', "message 2"),
                              ('[{"role": "user", "content": 5}]', "no text"),
                              ('[{"role": "user", "content": "x", "tool_calls": [5]}]', "tool_calls"),
                              ('[{"role": "assistant", "content": "", "tool_calls": [{}]}]', "tool_calls")):
            bad = self.scratch / "bad.json"
            bad.write_text(text)
            _, stderr = self.chat("Hello", f"/load {bad}", f"/save {self.saved}")
            self.assertIn(problem, stderr)
            self.assertEqual(self.roles(), ["user", "assistant"], "as it was")

    def test_system_and_reset(self):
        self.chat("/system Be brief.", "Hello", "/reset", "Again", f"/save {self.saved}")
        self.assertEqual(self.roles(), ["system", "user", "assistant"])
        self.assertEqual(self.messages()[0]["content"], "Be brief.")
        self.assertEqual(self.messages()[1]["content"], "Again")
        self.chat("/system Be brief.", "/system", "Hello", f"/save {self.saved}")
        self.assertEqual(self.roles(), ["user", "assistant"])

    def test_commands_answer_and_go_on(self):
        _, stderr = self.chat("/help", "/think", "/think off", "/think maybe", "/bogus", "/save",
                              "/save /nonexistent/file", "", "/exit", "never read")
        for told in ("/system TEXT", "thinking is on", "thinking is off", "/think is on or off",
                     "there is no /bogus", "/save needs a file name", "cannot be written"):
            self.assertIn(told, stderr)
        self.assertNotIn("tokens/s", stderr)
        self.assertIn("Checkpoint directory", self.run_lapidary("chat", "--help").stdout.decode())

    def test_pictures_and_sounds_go_with_the_next_message(self):
        seeing = make_seeing_checkpoint(self.binary, self.scratch)
        lines = [f"/image {MEDIA / 'turned.jpg'}", f"/audio {MEDIA / 'short.wav'}", "What is it?", "And now?",
                 f"/save {self.saved}", "/reset", "Hello"]
        result = self.run_lapidary("chat", seeing, "--stats", "--temperature", "0", "--max-tokens", "4",
                                   input="\n".join(lines).encode())
        stderr = result.stderr.decode()
        self.assertEqual(result.returncode, 0, stderr)
        self.assertRegex(stderr, r"turned.jpg \(\d+ tokens\) goes with the next message")
        self.assertIn("short.wav (3 tokens)", stderr)
        prompts = [int(count) for count in re.findall(r"of (\d+) prompt tokens", stderr)]
        # Both are still there in the second turn, and gone with the conversation.
        self.assertGreater(prompts[0], 143)
        self.assertGreater(prompts[1], prompts[0])
        self.assertLess(prompts[2], 60)
        kinds = [part["type"] for part in self.messages()[0]["content"]]
        self.assertEqual(kinds, ["image", "audio", "text"])

    def test_what_cannot_be_seen_is_said(self):
        _, stderr = self.chat("/image", "/audio", f"/image {MEDIA / 'turned.jpg'}", "Hello")
        self.assertIn("/image needs a file name", stderr)
        self.assertIn("/audio needs a file name", stderr)
        self.assertIn("this model takes no images", stderr)
        self.assertIn("tokens/s", stderr)

    def test_every_answer_has_the_form_asked_for(self):
        # Needs a model that may stop.
        result = self.run_lapidary("chat", self.model, "--choice", "yes", "--choice", "no",
                                   "--seed", "1",
                                   input=f"Hello\nAgain\n/save {self.saved}\n".encode())
        self.assertEqual(result.returncode, 0, result.stderr)
        answers = [message["content"] for message in self.messages()[1::2]]
        self.assertEqual(len(answers), 2)
        self.assertTrue(set(answers) <= {"yes", "no"}, answers)

    def test_a_form_that_cannot_be_had_is_refused_at_once(self):
        result = self.run_lapidary("chat", self.model, "--regex", "(", input=b"Hello\n")
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, b"")
        self.assertIn("--regex: ", result.stderr.decode())

    def test_a_full_context_is_said_and_reset_helps(self):
        stdout, stderr = self.chat("x" * 200, "/reset", "Hi", f"/save {self.saved}",
                                   arguments=("--context", "64"))
        self.assertIn("the context is full", stderr)
        self.assertIn("the context of 64 tokens is full", stderr)  # Cut in the middle of an answer.
        self.assertIn("/reset", stderr)
        self.assertEqual(self.roles(), ["user", "assistant"])
        self.assertTrue(stdout)

    def test_malformed_lines_are_refused_and_it_goes_on(self):
        result = self.run_lapidary("chat", self.endless, "--max-tokens", "4", "--stats",
                                   input=b"\xff\xfe\nHello\n")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"not valid UTF-8", result.stderr)
        self.assertEqual(result.stderr.count(b"tokens/s"), 1)

    def test_models_that_cannot_chat_say_why(self):
        no_template = self.variant("no-template", without=["chat_template.jinja"])
        for message, *arguments in ((b"no chat template", no_template),
                                    (b"is a preset", "tiny-e", "--load-format", "dummy")):
            result = self.run_lapidary("chat", *arguments, input=b"")
            self.assertEqual(result.returncode, 1)
            self.assertIn(message, result.stderr)

    # --- Ctrl-C ---

    def start(self):
        process = subprocess.Popen([self.binary, "chat", self.endless, "--seed", "1"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def test_an_interrupt_stops_the_answer_and_not_the_program(self):
        process = self.start()
        for _ in range(2):
            process.stdin.write(b"Hello\n")
            process.stdin.flush()
            os.read(process.stdout.fileno(), 1)  # The answer has begun.
            process.send_signal(signal.SIGINT)
            while b"(stopped)" not in process.stderr.readline():
                self.assertIsNone(process.poll())
            # Answers are written before the remark, so what is left of this one is in the pipe.
            while select.select([process.stdout], [], [], 0)[0]:
                os.read(process.stdout.fileno(), 65536)
        _, stderr = process.communicate(f"/save {self.saved}\n".encode(), timeout=60)
        self.assertEqual(process.returncode, 0, stderr)
        self.assertEqual(self.roles(), ["user", "assistant"] * 2)

    def test_two_interrupts_without_an_answer_leave(self):
        process = self.start()
        process.stdin.write(b"/think off\n")
        process.stdin.flush()
        while b"thinking is off" not in process.stderr.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertIn(b"Ctrl-C again leaves", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        process.communicate()

    # --- on a terminal ---

    def on_terminal(self, history):
        """(process, terminal, wait_for, at_prompt)"""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm", LAPIDARY_HISTORY=str(history))
            os.execv(self.binary, [self.binary, "chat", str(self.endless), "--seed", "1"])
        shown = b""

        def wait_for(pattern, keys=b""):
            nonlocal shown
            deadline = time.monotonic() + 60
            while not (match := re.search(pattern, shown)):
                self.assertLess(time.monotonic(), deadline, (pattern, shown))
                if select.select([terminal], [], [], 1)[0]:
                    shown += os.read(terminal, 65536)
            shown = shown[match.end():]
            os.write(terminal, keys)

        def at_prompt(keys):
            wait_for(b">>> ")
            # The prompt is there a moment before the keys are the editor's.
            while termios.tcgetattr(terminal)[3] & termios.ISIG:
                time.sleep(0.01)
            os.write(terminal, keys)

        return pid, terminal, wait_for, at_prompt

    def test_lines_are_edited_and_keys_work_on_a_terminal(self):
        history = self.scratch / "state" / "history"
        pid, terminal, wait_for, at_prompt = self.on_terminal(history)
        at_prompt(b"given up\x03")
        at_prompt(b"Hellox\x7f\n")  # with a correction
        wait_for(b"Hello")
        wait_for(rb"\n[^\r\n\x1b]", b"\x03")  # The answer has begun.
        wait_for(rb"\(stopped\)")
        wait_for(b"tokens/s")
        at_prompt(f"/save {self.saved}\n".encode())
        wait_for(b"saved to")
        at_prompt(b"\x1b[A")  # the line before
        wait_for(b"/save", b"\n")
        wait_for(b"saved to")
        at_prompt(b"\x03")
        wait_for(b"Ctrl-C again leaves")
        at_prompt(b"\x03")
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        os.close(terminal)
        self.assertEqual(self.messages()[0]["content"], "Hello")
        self.assertEqual(history.stat().st_mode & 0o777, 0o600)

        # Another run remembers what was typed.
        pid, terminal, wait_for, at_prompt = self.on_terminal(history)
        at_prompt(b"\x1b[A\x1b[A")  # two lines before
        wait_for(b"Hello", b"\x15\x04")
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        os.close(terminal)

    def test_what_is_pasted_is_one_message(self):
        pid, terminal, wait_for, at_prompt = self.on_terminal(self.scratch / "state" / "history")
        at_prompt(b"See: \x1b[200~one\r/exit\r\x1b[31mt\xc3\xa4 \r\x1b[201~!\n")
        wait_for(rb"\x1b\[\?2004l[^\r\n\x1b]", b"\x03")  # The editor is done, the answer has begun.
        wait_for(b"tokens/s")
        at_prompt(f"/save {self.saved}\n".encode())
        wait_for(b"saved to")
        at_prompt(b"\x04")
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        os.close(terminal)
        self.assertEqual(self.messages()[0]["content"], "See: one\n/exit\n[31mt\u00e4 !")


if __name__ == "__main__":
    command_harness.main()
