"""`lapidary logits` and `generate` with pictures and sounds. Usage: media_command_test.py BINARY GOLDENS FILES"""

import array
import json
import pathlib
import struct
import subprocess
import sys

import command_harness
import mmproj_writer

IMAGE, AUDIO, VIDEO = 150, 151, 152
NAMES = ["turned.jpg", "alpha.png", "tune.wav", "short.wav"]


def read_golden(path):
    """name -> list of numbers, of a safetensors file of I32 and F32."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_bytes])
    values = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            values[name] = array.array("i" if entry["dtype"] == "I32" else "f", data[begin:end])
    return values


class MediaTest(command_harness.CommandTest):
    goldens = files = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models, cls.golden = {}, {}
        for name in ("media-e", "media-unified"):
            cls.models[name] = cls.scratch / name
            subprocess.run([cls.binary, "synth", "--seed", "7", "--dtype", "f32", "--config",
                            cls.goldens / f"{name}.config.json", "--out", cls.models[name]],
                           check=True, capture_output=True)
            # A generated placeholder would stand for nothing.
            (cls.models[name] / "generation_config.json").write_text(
                json.dumps({"suppress_tokens": [IMAGE, AUDIO, VIDEO]}))
            cls.golden[name] = read_golden(cls.goldens / f"{name}.safetensors")

    def media_flags(self, names):
        flags = ["--max-soft-tokens", "70"]
        for name in names:
            flags += ["--audio" if name.endswith(".wav") else "--image", self.files / name]
        return flags

    def prompt(self, model, name):
        golden = self.golden[model]
        used = [NAMES[idx] for idx in golden[f"{name}.files"]]
        return ["--ids", ",".join(map(str, golden[f"{name}.ids"])), *self.media_flags(used)]

    def test_logits_are_the_references(self):
        for model, name in (("media-e", "all"), ("media-unified", "two")):
            out = self.scratch / "logits.npy"
            result = self.run_lapidary("logits", self.models[model], *self.prompt(model, name), "--output", out)
            self.assertEqual(result.returncode, 0, result.stderr)
            data = out.read_bytes()
            (header_bytes,) = struct.unpack("<H", data[8:10])
            logits = array.array("f", data[10 + header_bytes:])
            golden = self.golden[model]
            vocab = len(logits) // len(golden[f"{name}.ids"])
            expected = golden[f"{name}.logits"]
            largest = max(map(abs, expected))
            for idx, row in enumerate(golden[f"{name}.rows"]):
                for token in range(vocab):
                    self.assertLess(abs(logits[row * vocab + token] - expected[idx * vocab + token]),
                                    1e-4 * largest, (model, row, token))

    def logits(self, model, *arguments):
        out = self.scratch / "logits.npy"
        result = self.run_lapidary("logits", model, *arguments, "--device", "cpu", "--output", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        data = out.read_bytes()
        (header_bytes,) = struct.unpack("<H", data[8:10])
        return array.array("f", data[10 + header_bytes:])

    def test_towers_of_an_mmproj_file_give_the_same_logits(self):
        placeholders = ["<|image|>", "<|audio|>", "<|video|>", "<|image>", "<image|>", "<|audio>", "<audio|>"]
        for model, name in (("media-e", "all"), ("media-unified", "two")):
            folder = self.scratch / f"gguf-{model}"
            folder.mkdir()
            file = folder / "model.gguf"
            result = self.run_lapidary("convert", self.models[model], "--to", "q8_0", "--out", file)
            self.assertEqual(result.returncode, 0, result.stderr)
            # A vocabulary that names the placeholders: a GGUF file has no other place to say their ids.
            mmproj_writer.add_tokens(file, ["-"] * IMAGE + placeholders)
            mmproj_writer.write_mmproj(self.models[model], folder / "mmproj.gguf")
            want = self.logits(self.models[model], *self.prompt(model, name), "--quantization", "q8_0")
            got = self.logits(file, *self.prompt(model, name))
            largest = max(map(abs, want))
            self.assertEqual(len(got), len(want))
            self.assertLess(max(abs(a - b) for a, b in zip(got, want)), 1e-4 * largest, model)

    def test_greedy_tokens_are_the_references_and_media_are_listed(self):
        answer = self.generate(*self.prompt("media-e", "all"), "--temperature", "0", "--max-tokens", "24",
                               "--ignore-eos", model=self.models["media-e"])
        self.assertEqual(answer["output_ids"], list(self.golden["media-e"]["all.greedy"]))
        self.assertEqual(answer["prompt_ids"], list(self.golden["media-e"]["all.ids"]))
        kinds = [(medium["kind"], medium["soft_tokens"]) for medium in answer["media"]]
        ids = answer["prompt_ids"]
        self.assertEqual([kind for kind, _ in kinds], ["audio", "image", "audio"])
        self.assertEqual(sum(count for kind, count in kinds if kind == "image"), ids.count(IMAGE))
        image = answer["media"][1]
        self.assertEqual(image["height"] // 48 * (image["width"] // 48), image["soft_tokens"])
        self.assertIsNone(answer["media"][0]["height"])

    def failure(self, *arguments, model="media-e"):
        result = self.run_lapidary("generate", self.models[model], *arguments)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, b"")
        return result.stderr.decode()

    def test_what_does_not_fit_is_refused_with_both_numbers(self):
        count = list(self.golden["media-e"]["one.ids"]).count(IMAGE)
        image = self.media_flags(["turned.jpg"])
        short = ",".join(["2"] + [str(IMAGE)] * (count - 1))
        self.assertIn(f"is {count} soft tokens, but its run of the image token 150 has {count - 1}",
                      self.failure("--ids", short, *image))
        self.assertIn("has 0 runs of the image token 150, but 1 image files", self.failure("--ids", "2,5", *image))
        self.assertIn("has 1 runs of the image token 150, but 0 image files", self.failure("--ids", "2,150"))
        self.assertIn("has 1 runs of the audio token 151, but 0 audio files",
                      self.failure("--ids", "2,151", model="media-unified"))

    def test_bad_files_are_refused_by_name(self):
        bad = self.scratch / "bad.png"
        bad.write_bytes(b"\x89PNG\r\n\x1a\nno picture")
        self.assertIn(f"{bad}: the PNG image cannot be read", self.failure("--ids", "2,150", "--image", bad))
        text = self.scratch / "text.png"
        text.write_text("hello")
        self.assertIn("neither JPEG nor PNG nor WebP", self.failure("--ids", "2,150", "--image", text))
        self.assertIn("the audio file cannot be read", self.failure("--ids", "2,151", "--audio", text))
        self.assertIn("no such file", self.failure("--ids", "2,150", "--image", self.scratch / "none.png").lower())

    def test_a_text_model_takes_no_media(self):
        result = self.run_lapidary("generate", self.model, "--ids", "2,5", *self.media_flags(["alpha.png"]))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"takes no images", result.stderr)


if __name__ == "__main__":
    MediaTest.files = pathlib.Path(sys.argv.pop())
    MediaTest.goldens = pathlib.Path(sys.argv.pop())
    command_harness.main()
