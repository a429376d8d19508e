"""--lora of the commands that run a model, and of `inspect`. Usage: lora_command_test.py BINARY"""

import array
import json
import pathlib
import subprocess

import command_harness
import lora_files

GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"


class LoraCommandTest(command_harness.CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.adapter = lora_files.write_adapter(cls.scratch / "adapter", cls.model, seed=1)

    def logits(self, model, ids, *arguments):
        path = self.scratch / "logits.npy"
        result = self.run_lapidary("logits", model, "--ids", ",".join(map(str, ids)), "--output", path, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        raw = path.read_bytes()
        return array.array("f", raw[10 + int.from_bytes(raw[8:10], "little"):])

    def refusal(self, *arguments):
        result = self.run_lapidary(*arguments)
        self.assertEqual(result.returncode, 1, result.stdout)
        return result.stderr.decode()

    def test_logits_are_those_of_peft(self):
        model = self.scratch / "odd-unified"
        subprocess.run([self.binary, "synth", "--seed", "7", "--config", GOLDENS / "odd-unified.config.json", "--out",
                        model], check=True, capture_output=True)
        golden = lora_files.read_safetensors(GOLDENS / "lora" / "patterns.safetensors")
        ids, expected = array.array("i", golden["ids"][2]), array.array("f", golden["logits"][2])
        directory = GOLDENS / "lora" / "patterns"
        largest = max(map(abs, expected))

        def distance(*arguments):
            return max(abs(a - b) for a, b in zip(self.logits(model, ids, *arguments), expected, strict=True)) / largest

        self.assertLess(distance("--lora", directory), 1e-4)
        self.assertLess(distance("--lora", f"{directory}=1.0"), 1e-4)
        self.assertGreater(distance("--lora", f"{directory}=0.5"), 1e-2)
        self.assertGreater(distance(), 1e-2)

    def test_a_scale_of_zero_is_the_model_alone(self):
        ids = [2, 300, 301, 302]
        self.assertEqual(self.logits(self.model, ids, "--lora", f"{self.adapter}=0"), self.logits(self.model, ids))

    def test_generate_answers_with_the_adapter(self):
        ask = ("--ids", "2,300,301", "--max-tokens", "20", "--temperature", "0", "--ignore-eos")
        alone = self.generate(*ask)["output_ids"]
        adapted = self.generate(*ask, "--lora", self.adapter)["output_ids"]
        self.assertNotEqual(adapted, alone)
        self.assertEqual(self.generate(*ask, "--lora", self.adapter)["output_ids"], adapted)

    def test_convert_merges_the_adapter(self):
        ids = [2, 300, 301, 302]
        files = {}
        for name, flags in (("alone", ()), ("merged", ("--lora", self.adapter))):
            files[name] = self.scratch / f"{name}.gguf"
            result = self.run_lapidary("convert", self.model, "--to", "q8_0", "--out", files[name], *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
        expected = self.logits(self.model, ids, "--lora", self.adapter)

        def distance(file):
            pairs = list(zip(self.logits(file, ids), expected, strict=True))
            return sum((a - b)**2 for a, b in pairs) / sum(b * b for _, b in pairs)

        self.assertLess(distance(files["merged"]), 0.02)
        self.assertGreater(distance(files["alone"]), 0.2)

    def test_inspect_says_what_is_applied(self):
        result = self.run_lapidary("inspect", self.model, "--json", "--lora", self.adapter)
        lora = json.loads(result.stdout)["lora"]
        self.assertEqual((lora["modules"], lora["applied"], lora["max_rank"]), (27, 27, 2))
        text = self.run_lapidary("inspect", self.model, "--lora", self.adapter).stdout.decode()
        self.assertIn("applied 27 of 27 modules", text)

    def test_what_cannot_be_applied_is_refused_in_a_sentence(self):
        ask = ("generate", self.model, "--ids", "2", "--lora")
        self.assertIn("not a directory", self.refusal(*ask, "nowhere"))
        self.assertIn("scale", self.refusal(*ask, f"{self.adapter}=much"))
        self.assertIn("adapter_config.json", self.refusal(*ask, self.model))
        self.assertIn("--tensor-parallel-size 1", self.refusal(*ask, self.adapter, "-tp", "2", "--device", "cpu"))
        other = self.scratch / "tiny-dense"
        subprocess.run([self.binary, "synth", "--preset", "tiny-dense", "--out", other], check=True,
                       capture_output=True)
        self.assertIn("layers.0.mlp.down_proj", self.refusal("generate", other, "--ids", "2", "--lora", self.adapter))
        foreign = lora_files.write_adapter(self.scratch / "foreign", self.model, seed=1)
        config = json.loads((foreign / "adapter_config.json").read_text())
        (foreign / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
        self.assertIn("use_dora", self.refusal(*ask, foreign))


if __name__ == "__main__":
    command_harness.main()
