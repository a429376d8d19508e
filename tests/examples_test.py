"""The examples, as their users run them, on the bundled model. Usage: examples_test.py PROGRAM BUILD_DIR"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

import anthropic
import openai

from server_process import ServerProcess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM, BUILD = sys.argv[1:3] if len(sys.argv) == 3 else [None] * 2
GUIDE = (ROOT / "examples/README.md").read_text()


def block(language):
    """The guide's only block in this language."""
    [text] = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return text


class ExamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(PROGRAM, str(ROOT / "models/pebble-e"), "--device", "cpu", "--max-model-len", "2048",
                                   "--served-model-name", "pebble-e", "e4b")
        cls.addClassCleanup(cls.server.stop)
        scratch = tempfile.TemporaryDirectory(prefix="lapidary-examples-")
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)

    def run_example(self, name, *arguments, asks_server=True, **environment):
        where = ["--base-url", f"{self.server.url}/v1"] if asks_server else []
        result = subprocess.run([sys.executable, ROOT / "examples" / name, *arguments, *where], capture_output=True,
                                text=True, env={**os.environ, **environment}, cwd=self.scratch)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.splitlines()

    def test_rag_answers_from_the_lines_that_matter(self):
        notes = self.scratch / "notes.txt"
        notes.write_text("\n".join([*(f"The code of Nora{n} is {2000 + n}." for n in range(60)), "The code of Otto is 5285.",
                                    "The password of the purple stable is Batima.", "Fiwora likes noodles."]))
        answers = self.run_example("rag.py", notes, "What is the code of Otto?", "What does Fiwora like?")
        self.assertEqual(answers, ["The code of Otto is 5285.", "Fiwora likes noodles."])

    def test_the_agent_calls_its_function_and_answers_with_the_result(self):
        lines = self.run_example("agent.py", "What is the weather in Lima?")
        self.assertEqual(lines[0], 'called get_weather({"city":"Lima"})')
        self.assertIn("sunny", lines[-1])
        self.assertIn("14", lines[-1])

    def test_extraction_gives_an_object_of_the_class(self):
        lines = self.run_example("extract.py", "name: Otto, age: 25, village: Oakton")
        self.assertEqual(lines, ["Otto is 25 and lives in Oakton."])

    def test_images_are_seen(self):
        lines = self.run_example("images.py", "How many stars are there?", ROOT / "docs/stars.png")
        self.assertEqual(lines, ["There are 4."])

    def test_a_batch_is_answered_without_a_server(self):
        package = self.scratch / "package"
        subprocess.run(["cmake", "--install", BUILD, "--component", "python", "--prefix", package], check=True,
                       stdout=subprocess.DEVNULL)
        questions, answers = self.scratch / "questions.jsonl", self.scratch / "answers.jsonl"
        questions.write_text('{"prompt": "What is 48 + 17?"}\n{"prompt": "What sound does a frog make?"}\n')
        self.run_example("batch.py", questions, answers, asks_server=False, PYTHONPATH=str(package))
        self.assertEqual([json.loads(line)["answer"] for line in answers.read_text().splitlines()],
                         ["48 + 17 = 65", "A frog says croak."])

    def at_server(self, url):
        """An address of the guide, at the port of this test's server."""
        self.assertTrue(url.startswith("http://127.0.0.1:8000"), url)
        return url.replace("http://127.0.0.1:8000", self.server.url)

    def test_the_recipe_for_claude_code_names_an_address_that_answers(self):
        names = dict(re.findall(r"(ANTHROPIC_\w+)=(\S+)", block("sh")))
        client = anthropic.Anthropic(base_url=self.at_server(names["ANTHROPIC_BASE_URL"]),
                                     auth_token=names["ANTHROPIC_AUTH_TOKEN"], max_retries=0)
        for model in (names["ANTHROPIC_MODEL"], names["ANTHROPIC_SMALL_FAST_MODEL"]):
            answer = client.messages.create(model=model, max_tokens=50, extra_body={"temperature": 0},
                                            messages=[{"role": "user", "content": "What is 48 + 17?"}])
            self.assertEqual(answer.content[0].text, "48 + 17 = 65")

    def test_the_recipe_for_codex_names_an_api_that_answers(self):
        config = tomllib.loads(block("toml"))
        provider = config["model_providers"][config["model_provider"]]
        self.assertEqual(provider["wire_api"], "responses")
        client = openai.OpenAI(base_url=self.at_server(provider["base_url"]), api_key="none", max_retries=0)
        answer = client.responses.create(model=config["model"], input="What is 48 + 17?", temperature=0)
        self.assertEqual(answer.output_text, "48 + 17 = 65")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
