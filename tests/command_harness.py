"""Runs the lapidary binary as its users do, on small random checkpoints. Needs nothing but Python."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

# Everything special in Gemma 4 that a small vocabulary can hold; left out, any output is text.
SPECIAL_IDS = [0, 1, 2, 3, 4, 46, 47, 48, 49, 50, 51, 52, 98, 100, 101, 105, 106]


class CommandTest(unittest.TestCase):
    binary = None  # set by main()

    @classmethod
    def setUpClass(cls):
        cls.scratch = pathlib.Path(tempfile.mkdtemp(prefix="lapidary-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        cls.model = cls.scratch / "tiny-e"
        subprocess.run([cls.binary, "synth", "--preset", "tiny-e", "--out", cls.model],
                       check=True, capture_output=True)

    def variant(self, name, without=(), **generation):
        """A copy of the model without some files and with other generation settings, which then
        alone decide where it stops."""
        directory = self.scratch / name
        shutil.copytree(self.model, directory, dirs_exist_ok=True)
        config = json.loads((directory / "config.json").read_text())
        for section in (config, config.get("text_config", {})):
            section.pop("eos_token_id", None)
        (directory / "config.json").write_text(json.dumps(config))
        (directory / "generation_config.json").write_text(json.dumps(generation))
        for file in without:
            (directory / file).unlink()
        return directory

    def run_lapidary(self, *arguments, **options):
        return subprocess.run([self.binary, *arguments], capture_output=True, timeout=100, **options)

    def generate(self, *arguments, model=None):
        """generate --json, parsed."""
        result = self.run_lapidary("generate", model or self.model, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count(b"\n"), 1, "stdout is one line")
        return json.loads(result.stdout)


def main():
    CommandTest.binary = sys.argv.pop(1)
    unittest.main(verbosity=2)
