"""`lapidary eval` and the default model from the outside. Usage: eval_command_test.py BINARY"""

import array
import csv
import json
import os
import shutil
import subprocess

import command_harness

QUESTIONS = ["Hello", "What is 2 + 2?", "Sort: b, a", "Grüße", "Say \"<turn|>\".", "a\nb\nc"]


def item(number, **fields):
    return {"id": f"t-{number}", "task": f"task-{number % 3}", "stop": 106, "enable_thinking": False,
            "messages": [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)] + " " * (number // 6) + "?"}],
            "reference": {"content": "x"}, "check": {"kind": "exact"}, **fields}


class EvalTest(command_harness.CommandTest):
    def evaluate(self, *arguments, model=None):
        result = self.run_lapidary("eval", model or self.model, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count(b"\n"), 1, "stdout is one line")
        return json.loads(result.stdout)

    def assert_refused(self, message, *arguments, **options):
        result = self.run_lapidary(*arguments, **options)
        self.assertNotEqual(result.returncode, 0, arguments)
        self.assertEqual(result.stdout, b"", arguments)
        self.assertIn(message, result.stderr.decode(), arguments)

    def write_items(self, name, items):
        path = self.scratch / name
        path.write_text("".join(json.dumps(line) + "\n" for line in items))
        return path

    # --- pebble ---

    def test_answers_are_greedy_and_do_not_depend_on_what_runs_beside_them(self):
        items = self.write_items("items.jsonl", [item(number) for number in range(12)])
        files = []
        for concurrency in ("1", "5", "64"):
            path = self.scratch / f"answers-{concurrency}.jsonl"
            self.evaluate("--items", items, "--concurrency", concurrency, "--save-answers", path)
            files.append(path.read_text())
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])
        answers = [json.loads(line) for line in files[0].splitlines()]
        self.assertEqual([answer["id"] for answer in answers], [f"t-{number}" for number in range(12)])
        model = self.variant("stops", eos_token_id=[1, 106, 50])
        for number in (0, 4, 11):
            one = self.generate("--chat", item(number)["messages"][0]["content"], "--temperature", "0", "--max-tokens", "160",
                                model=model)
            self.assertEqual(answers[number]["ids"], one["output_ids"])

    def test_scores_count_right_answers_per_task(self):
        # Words are all a random model gets right: it only has to stop by itself, or be judged by length.
        model = self.variant("eager")
        items = [item(number, check={"kind": "min_words", "words": 0}) for number in range(9)]
        path = self.scratch / "first.jsonl"
        self.evaluate("--items", self.write_items("score.jsonl", items), "--save-answers", path, model=model)
        right = {}
        for line in path.read_text().splitlines():
            answer = json.loads(line)
            well_formed = answer["ids"][-1] == 106 and "<|" not in answer["text"][:-7] and "|>" not in answer["text"][:-7]
            self.assertEqual(answer["right"], well_formed, answer)
            right[answer["id"]] = answer["right"]
        report = self.evaluate("--items", self.scratch / "score.jsonl", model=model)
        self.assertEqual(report["count"], 9)
        self.assertEqual(report["correct"], sum(right.values()))
        self.assertAlmostEqual(report["accuracy"], sum(right.values()) / 9)
        self.assertEqual(set(report["tasks"]), {"task-0", "task-1", "task-2"})
        for number, name in enumerate(sorted(report["tasks"])):
            score = report["tasks"][name]
            correct = sum(right[f"t-{i}"] for i in range(number, 9, 3))
            self.assertEqual((score["count"], score["correct"]), (3, correct))
            self.assertAlmostEqual(score["accuracy"], correct / 3)

    def test_agreement_names_what_differs(self):
        model = self.variant("agreeing", eos_token_id=[1, 106, 50])
        items = self.write_items("agree.jsonl", [item(number) for number in range(6)])
        recorded = self.scratch / "agreeing-answers.jsonl"  # where it is found by itself
        report = self.evaluate("--items", items, "--save-answers", recorded, model=model)
        self.assertNotIn("agreement", report)
        report = self.evaluate("--items", items, model=model)
        agreement = report["agreement"]
        self.assertEqual((agreement["count"], agreement["same_answer"], agreement["same_verdict"]), (6, 6, 6))
        self.assertEqual(agreement["differences"], [])
        lines = [json.loads(line) for line in recorded.read_text().splitlines()]
        before = list(lines[2]["ids"])
        lines[2]["ids"][3] += 1
        # What the file says of an answer is not believed: the ids are judged here.
        lines[2].update(text="something else", right=True)
        other = self.scratch / "other.jsonl"
        other.write_text("".join(json.dumps(line) + "\n" for line in lines))
        agreement = self.evaluate("--items", items, "--answers", other, model=model)["agreement"]
        self.assertEqual((agreement["same_answer"], agreement["same_verdict"]), (5, 6))
        difference, = agreement["differences"]
        self.assertEqual((difference["id"], difference["position"], difference["same_verdict"]), ("t-2", 3, True))

        def spelled(ids):
            text = self.run_lapidary("detokenize", model, "--ids", ",".join(map(str, ids))).stdout.decode()
            return text.rstrip("\n")

        self.assertEqual(difference["continuation"], spelled(before[3:]))
        self.assertEqual(difference["reference_continuation"], spelled(lines[2]["ids"][3:]))
        shown = self.run_lapidary("eval", model, "--items", items, "--answers", other).stdout.decode()
        self.assertIn("same answer, token for token: 5 of 6; same verdict: 6 of 6", shown)
        self.assertIn("t-2 differs from token 3", shown)
        other.write_text(recorded.read_text().split("\n", 1)[1])
        self.assert_refused("no recorded answer to item t-0", "eval", model, "--items", items, "--answers", other)

    def test_a_subset_is_drawn_by_its_seed(self):
        items = self.write_items("many.jsonl", [item(number) for number in range(30)])

        def drawn(*arguments):
            path = self.scratch / "drawn.jsonl"
            report = self.evaluate("--items", items, "--n", "6", "--save-answers", path, *arguments)
            self.assertEqual(report["count"], 6)
            self.assertEqual({score["count"] for score in report["tasks"].values()}, {2})
            return [json.loads(line)["id"] for line in path.read_text().splitlines()]

        self.assertEqual(drawn(), drawn("--seed", "0"))
        self.assertNotEqual(drawn("--seed", "1"), drawn("--seed", "2"))

    # --- mmlu ---

    def mmlu(self, name, answers=None):
        """A small data directory, with every trick of CSV; `answers` replaces the letters of test/."""
        directory = self.scratch / name
        subjects = {"abstract_algebra": 5, "us_history": 4}
        for split in ("dev", "test"):
            (directory / split).mkdir(parents=True, exist_ok=True)
            for subject, count in subjects.items():
                rows = []
                for number in range(6 if split == "dev" else count):
                    letter = "ABCD"[number % 4]
                    if split == "test" and answers:
                        letter = answers[subject][number]
                    rows.append([f'"{subject}", question {number * 37}\nof {split}: 1,000?', f"{number}, or less", '""',
                                 f"é {number}", " four\r\nlines", letter])
                with open(directory / split / f"{subject}_{split}.csv", "w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows(rows)
        return directory

    def predictions(self, directory):
        """Letters by the published recipe: prompts from Python's csv module, `tokenize` and `logits`."""
        def tokenize(text):
            return json.loads(self.run_lapidary("tokenize", self.model, "--text", text, "--no-special", "--json").stdout)["ids"]

        def spelled(row):
            return row[0] + "".join(f"\n{letter}. {text}" for letter, text in zip("ABCD", row[1:5])) + "\nAnswer:"

        letters = [tokenize(f"Answer: {letter}")[-1] for letter in "ABCD"]
        found = {}
        for path in sorted((directory / "test").iterdir()):
            subject = path.name.removesuffix("_test.csv")
            with open(directory / "dev" / f"{subject}_dev.csv", newline="", encoding="utf-8") as file:
                shots = "".join(f"{spelled(row)} {row[5]}\n\n" for row in list(csv.reader(file))[:5])
            head = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
            found[subject] = []
            with open(path, newline="", encoding="utf-8") as file:
                for row in csv.reader(file):
                    ids = [2] + tokenize(head + shots + spelled(row) + " A")[:-1]
                    output = self.scratch / "logits.npy"
                    self.run_lapidary("logits", self.model, "--ids", ",".join(map(str, ids)), "--output", output, check=True)
                    data, values = output.read_bytes(), array.array("f")
                    values.frombytes(data[data.index(b"\n") + 1:])
                    last = values[-(len(values) // len(ids)):]
                    found[subject].append("ABCD"[max(range(4), key=lambda letter: last[letters[letter]])])
        return found

    def test_mmlu_takes_the_letter_with_the_largest_logit(self):
        found = self.predictions(self.mmlu("mmlu"))
        self.assertGreater(len(set("".join(map("".join, found.values())))), 1, "one letter for all proves little")
        right = self.mmlu("mmlu-right", found)
        for concurrency in ("1", "64"):
            report = self.evaluate("--suite", "mmlu", "--data", right, "--concurrency", concurrency)
            self.assertEqual(report["accuracy"], 1.0)
            self.assertEqual({name: score["count"] for name, score in report["tasks"].items()},
                             {"abstract_algebra": 5, "us_history": 4})
            self.assertEqual(report["shortened_prompts"], 0)
        for number in range(4):  # each question alone made wrong
            letters = list(found["us_history"])
            letters[number] = "ABCD"[("ABCD".index(letters[number]) + 1) % 4]
            report = self.evaluate("--suite", "mmlu", "--data",
                                   self.mmlu("mmlu-wrong", {**found, "us_history": letters}))
            self.assertEqual((report["correct"], report["tasks"]["us_history"]["correct"]), (8, 3))
        report = self.evaluate("--suite", "mmlu", "--data", right, "--n", "2")
        self.assertEqual({score["count"] for score in report["tasks"].values()}, {1})

    def test_mmlu_needs_its_data(self):
        self.assert_refused("--suite mmlu needs --data", "eval", self.model, "--suite", "mmlu")
        self.assert_refused("--data names a folder", "eval", self.model, "--suite", "mmlu", "--data", self.scratch / "none")
        data = self.mmlu("mmlu-broken")
        (data / "test" / "us_history_test.csv").write_text('a,"b\n')
        self.assert_refused("us_history_test.csv: line 1", "eval", self.model, "--suite", "mmlu", "--data", data)

    # --- bad input ---

    def test_bad_items_are_refused(self):
        path = self.scratch / "bad.jsonl"
        path.write_text(json.dumps(item(0)) + "\n{\n")
        self.assert_refused("bad.jsonl: line 2", "eval", self.model, "--items", path)
        path.write_text("")
        self.assert_refused("holds no items", "eval", self.model, "--items", path)
        self.assert_refused("cannot open", "eval", self.model, "--items", self.scratch / "none.jsonl")
        path.write_text(json.dumps(item(0, messages=[{"role": "user", "content": "long " * 2000}])))
        self.assert_refused("exceed the model's context", "eval", self.model, "--items", path)
        path.write_text(json.dumps(item(0)))
        self.assert_refused("cannot be written", "eval", self.model, "--items", path, "--save-answers",
                            self.scratch / "none" / "answers.jsonl")
        self.assert_refused("no chat template", "eval", self.variant("bare", without=["chat_template.jinja"]), "--items",
                            self.write_items("one.jsonl", [item(0)]))

    # --- the default model ---

    def test_commands_without_a_model_use_the_bundled_one(self):
        models = self.scratch / "models"
        shutil.copytree(self.model, models / "pebble-e")
        self.write_items("models/pebble-eval.jsonl", [item(number) for number in range(3)])
        environment = {**os.environ, "LAPIDARY_MODELS_DIR": str(models)}
        arguments = ("--ids", "2,300", "--max-tokens", "4", "--temperature", "0", "--json")
        default = self.run_lapidary("generate", *arguments, env=environment)
        self.assertIn(b"bundled toy model pebble-e", default.stderr)
        self.assertEqual(json.loads(default.stdout)["output_ids"], self.generate(*arguments[:-1])["output_ids"])
        report = json.loads(self.run_lapidary("eval", "--json", env=environment).stdout)
        self.assertEqual(report["count"], 3)
        chat = self.run_lapidary("chat", "--max-tokens", "2", input=b"Hello\n", env=environment)
        self.assertEqual(chat.returncode, 0, chat.stderr)
        server = subprocess.Popen([self.binary, "serve", "--port", "0"], env=environment, stderr=subprocess.PIPE)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        log = b""
        while b"serving pebble-e on http://127.0.0.1:" not in log:
            line = server.stderr.readline()
            self.assertTrue(line, log)
            log += line

    def test_bundled_models_go_by_name_in_every_command(self):
        models = self.scratch / "bundle"
        shutil.copytree(self.model, models / "stone")
        environment = {**os.environ, "LAPIDARY_MODELS_DIR": str(models)}
        request = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
        for command in (["inspect", "stone"], ["plan", "stone", "--memory", "80GB"],
                        ["tokenize", "stone", "--text", "a"], ["detokenize", "stone", "--ids", "5"],
                        ["render", "stone", "--input", "-"], ["generate", "stone", "--ids", "2", "--max-tokens", "1"],
                        ["convert", "stone", "--to", "q8_0", "--out", self.scratch / "stone.gguf"]):
            with self.subTest(command=command):
                done = self.run_lapidary(*command, input=request, env=environment)
                self.assertEqual(done.returncode, 0, done.stderr)
        # What lies in the current directory goes first.
        (self.scratch / "here" / "stone").mkdir(parents=True)
        done = self.run_lapidary("inspect", "stone", cwd=self.scratch / "here", env=environment)
        self.assertIn(b"stone/config.json", done.stderr)

    def test_a_program_beside_models_finds_them(self):
        tree = self.scratch / "tree"
        (tree / "build").mkdir(parents=True)
        program = shutil.copy(self.binary, tree / "build" / "lapidary")
        environment = {name: value for name, value in os.environ.items() if name != "LAPIDARY_MODELS_DIR"}
        shutil.copytree(self.model, tree / "models" / "pebble-e")
        result = subprocess.run([program, "generate", "--ids", "2", "--max-tokens", "1"], cwd="/", env=environment,
                                capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_missing_bundled_model_is_explained(self):
        environment = {**os.environ, "LAPIDARY_MODELS_DIR": str(self.scratch / "nothing")}
        for command in (["generate", "--ids", "2"], ["chat"], ["serve"], ["eval"]):
            with self.subTest(command=command):
                self.assert_refused("no MODEL was named and the bundled one is missing", *command, env=environment)
        self.assert_refused("LAPIDARY_MODELS_DIR", "eval", self.model, env=environment)


if __name__ == "__main__":
    command_harness.main()
