"""`lapidary convert` and GGUF files from the outside. Usage: convert_command_test.py BINARY PEBBLE_DIR"""

import json
import pathlib
import sys

import command_harness
import mmproj_writer

PEBBLE = pathlib.Path(sys.argv.pop(2))
QUESTION = "What is 48 + 17?"


def gguf_string(key, value):
    """A pair of a GGUF file's metadata whose value is a string (type 8)."""
    def text(words):
        return len(words).to_bytes(8, "little") + words.encode()
    return text(key) + (8).to_bytes(4, "little") + text(value)


class ConvertTest(command_harness.CommandTest):
    def convert(self, kind, name):
        path = self.scratch / name
        result = self.run_lapidary("convert", PEBBLE, "--to", kind, "--out", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path, result.stdout.decode()

    def answer(self, model):
        return self.generate("--chat", QUESTION, "--temperature", "0", "--max-tokens", "40", model=model)

    def test_a_converted_model_reads_prompts_and_stops_as_the_checkpoint(self):
        want = self.answer(PEBBLE)
        path, _ = self.convert("q8_0", "whole.gguf")
        got = self.answer(path)
        for key in ("prompt_ids", "output_ids", "text", "finish_reason"):
            self.assertEqual(got[key], want[key], key)

    def test_weights_may_be_rounded_as_they_are_loaded(self):
        want = self.answer(PEBBLE)["output_ids"]
        for name in ("q8_0", "int8", "fp8"):
            got = self.generate("--chat", QUESTION, "--temperature", "0", "--max-tokens", "40", "--device", "cpu",
                                "--quantization", name, model=PEBBLE)
            self.assertEqual(got["output_ids"], want, name)
        result = self.run_lapidary("generate", PEBBLE, "--ids", "2,5", "--quantization", "q3_0")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"--quantization", result.stderr)

    def test_the_head_takes_the_bits_that_are_asked_for(self):
        def formats(*options):
            result = self.run_lapidary("inspect", PEBBLE, "--json", *options)
            self.assertEqual(result.returncode, 0, result.stderr)
            rows = json.loads(result.stdout)["weights"]["cpu"]
            return {row["tensors"]: row["loaded"] for row in rows}
        self.assertEqual(formats("--quantization", "q4_0")["embeddings"], "Q8_0")
        self.assertEqual(formats("--quantization", "q4_0", "--head-bits", "4")["embeddings"], "Q4_0")
        self.assertEqual(formats("--quantization", "q4_0", "--head-bits", "16")["embeddings"], "BF16")
        self.assertEqual(formats("--head-bits", "8"), {**formats(), "embeddings": "Q8_0"})
        path = self.scratch / "head.gguf"
        result = self.run_lapidary("convert", PEBBLE, "--to", "q8_0", "--head-bits", "4", "--out", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        got = self.answer(path)["output_ids"]
        want = self.generate("--chat", QUESTION, "--temperature", "0", "--max-tokens", "40", "--device", "cpu",
                             "--quantization", "q8_0", "--head-bits", "4", model=PEBBLE)["output_ids"]
        self.assertEqual(got, want)
        # Its rows are no whole blocks of 256.
        result = self.run_lapidary("generate", PEBBLE, "--ids", "2,5", "--device", "cpu", "--head-bits", "6")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"no whole blocks of Q6_K", result.stderr)

    def test_a_directory_of_fp8_answers_and_converts(self):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
        import make_compressed_checkpoint
        want = self.answer(PEBBLE)["output_ids"]
        for name in ("fp8-block", "fp8-modelopt"):
            path = self.scratch / name
            make_compressed_checkpoint.compress(PEBBLE, name, path)
            self.assertEqual(self.answer(path)["output_ids"], want, name)
            rows = json.loads(self.run_lapidary("inspect", path, "--json").stdout)["weights"]["cpu"]
            mlp = next(row for row in rows if row["tensors"] == "MLP")
            self.assertIn("F8_E4M3", mlp["loaded"])
            self.assertEqual(mlp["loaded_bytes"], mlp["stored_bytes"])
        result = self.run_lapidary("convert", path, "--to", "q8_0", "--out", self.scratch / "fp8.gguf")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.answer(self.scratch / "fp8.gguf")["output_ids"], want)

    def test_every_tensor_is_reported_with_its_error(self):
        path, report = self.convert("q4_0", "q4_0.gguf")
        lines = report.splitlines()[1:]
        stored = json.loads(self.run_lapidary("inspect", path, "--json").stdout)["stored"]
        self.assertEqual(len(lines), sum(kind["tensors"] for kind in stored.values()))
        self.assertIn("Q4_0", stored)
        errors = {line.split()[1]: line.split()[3] for line in lines}
        self.assertEqual(errors["F32"], "exact")
        self.assertLess(float(errors["Q4_0"]), 0.2)

    def test_every_kind_of_tensor_is_shown_with_its_formats_on_each_device(self):
        path, _ = self.convert("q4_0", "formats.gguf")
        weights = json.loads(self.run_lapidary("inspect", path, "--json").stdout)["weights"]
        on_gpu = {row["tensors"]: row for row in weights["gpu"]}
        on_cpu = {row["tensors"]: row for row in weights["cpu"]}
        self.assertEqual((on_gpu["MLP"]["stored"], on_gpu["MLP"]["loaded"]), ("Q4_0", "W4 F16/32"))
        self.assertEqual(on_gpu["MLP"]["kernels"], "4-bit codes")
        self.assertEqual(on_cpu["MLP"]["loaded"], "Q4_0")
        self.assertEqual(on_gpu["MLP"]["stored_bytes"], on_cpu["MLP"]["loaded_bytes"])
        self.assertIn(b"weights on a GPU", self.run_lapidary("inspect", path).stdout)

    def test_rows_too_short_for_blocks_of_256_become_q5_0(self):
        path, _ = self.convert("q4_k", "q4_k.gguf")
        stored = json.loads(self.run_lapidary("inspect", path, "--json").stdout)["stored"]
        self.assertIn("Q5_0", stored)
        self.assertTrue(self.answer(path)["output_ids"])

    def test_what_fits_beside_a_file_is_planned_for_the_cpu(self):
        path, _ = self.convert("q4_0", "planned.gguf")
        planned = json.loads(self.run_lapidary("plan", path, "--memory", "2GB", "--json").stdout)
        self.assertEqual(planned["device"], "cpu")
        self.assertAlmostEqual(planned["weight_bytes"] / path.stat().st_size, 1.0, delta=0.1)
        self.assertGreater(planned["max_sequences"], 0)
        on_gpu = json.loads(self.run_lapidary("plan", path, "--memory", "20GB", "--device", "cuda", "--json").stdout)
        self.assertEqual(on_gpu["device"], "cuda")
        # What has no kernel there, such as the per-layer tables, takes the memory of bf16.
        self.assertGreater(on_gpu["weight_bytes"], planned["weight_bytes"])

    def test_towers_beside_a_file_are_shown(self):
        path, _ = self.convert("q8_0", "seeing.gguf")
        towers = self.scratch / "mmproj-seeing.gguf"
        towers.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (2).to_bytes(8, "little")
                           + gguf_string("general.architecture", "clip")
                           + gguf_string("clip.vision.projector_type", "gemma4v"))
        listed = json.loads(self.run_lapidary("inspect", path, "--json").stdout)["mmproj"]
        self.assertEqual(listed, [{"file": towers.name, "projectors": ["gemma4v"], "tensors": 0, "bytes": 0, "used": False}])
        self.assertIn(b"gemma4v", self.run_lapidary("inspect", path).stdout)
        towers.unlink()

    def test_towers_beside_a_file_see_and_hear(self):
        folder = self.scratch / "towers"
        folder.mkdir()
        model = folder / "pebble.gguf"
        self.assertEqual(self.run_lapidary("convert", PEBBLE, "--to", "q8_0", "--out", model).returncode, 0)
        picture = PEBBLE.parents[1] / "docs" / "stars.png"
        question = ("--chat", "How many stars are there?", "--image", picture, "--max-soft-tokens", "70", "--temperature", "0",
                    "--device", "cpu")
        blind = self.run_lapidary("generate", model, *question)
        self.assertEqual(blind.returncode, 1)
        self.assertIn(b"mmproj", blind.stderr)
        mmproj_writer.write_mmproj(PEBBLE, folder / "mmproj-pebble.gguf")
        want = self.generate(*question, "--quantization", "q8_0", model=PEBBLE)
        got = self.generate(*question, model=model)
        for key in ("prompt_ids", "output_ids", "media"):
            self.assertEqual(got[key], want[key], key)
        [listed] = json.loads(self.run_lapidary("inspect", model, "--json").stdout)["mmproj"]
        self.assertTrue(listed["used"])
        self.assertEqual(listed["projectors"], ["gemma4v", "gemma4a"])
        # Towers of another model, and what is no file of towers, are said to be left out.
        (folder / "mmproj-pebble.gguf").write_bytes(model.read_bytes())
        result = self.run_lapidary("generate", model, "--chat", "Hi", "--max-tokens", "1")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"no images and no audio", result.stderr)
        (folder / "mmproj-pebble.gguf").unlink()

    def test_a_benchmark_counts_the_bytes_of_the_file(self):
        path, _ = self.convert("q8_0", "counted.gguf")
        step_bytes = {}
        for model in (PEBBLE, path):
            result = self.run_lapidary("bench", "latency", model, "--device", "cpu", "--no-spec", "--input-len", "1",
                                       "--output-len", "4", "--num-iters", "1", "--num-iters-warmup", "0", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            step_bytes[model] = json.loads(result.stdout)["step_bytes"]
        # 34 bytes for 32 weights instead of 64; norms and scales are not rounded.
        self.assertAlmostEqual(step_bytes[path] / step_bytes[PEBBLE], 34 / 64, delta=0.03)

    def test_an_assistant_is_found_beside_its_model(self):
        path, _ = self.convert("q8_0", "drafted.gguf")
        assistant = self.scratch / "drafted-assistant.gguf"
        source = PEBBLE.with_name(PEBBLE.name + "-assistant")
        result = self.run_lapidary("convert", source, "--to", "q8_0", "--out", assistant)
        self.assertEqual(result.returncode, 0, result.stderr)
        plain = self.generate("--chat", QUESTION, "--temperature", "0", "--max-tokens", "40", "--no-spec", model=path)
        drafted = self.answer(path)
        self.assertEqual(drafted["output_ids"], plain["output_ids"])
        result = self.run_lapidary("generate", assistant, "--ids", "2,5", "--max-tokens", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"name its target model", result.stderr)

    def test_fast_math_answers_as_well(self):
        path, _ = self.convert("q8_0", "fast.gguf")
        got = self.generate("--chat", QUESTION, "--temperature", "0", "--max-tokens", "40", "--fast-math",
                            "--device", "cpu", model=path)
        self.assertEqual(got["prompt_ids"], self.answer(path)["prompt_ids"])
        self.assertTrue(got["output_ids"])

    def test_a_cut_file_is_refused(self):
        path, _ = self.convert("q8_0", "to_cut.gguf")
        cut = self.scratch / "cut.gguf"
        cut.write_bytes(path.read_bytes()[:-5000])
        result = self.run_lapidary("generate", cut, "--ids", "2,5", "--max-tokens", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cut off", result.stderr)

    def test_an_existing_file_is_not_overwritten(self):
        path = self.scratch / "there.gguf"
        path.write_text("mine")
        result = self.run_lapidary("convert", PEBBLE, "--to", "q8_0", "--out", path)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(path.read_text(), "mine")


if __name__ == "__main__":
    command_harness.main()
