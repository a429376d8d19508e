"""`lapidary draft`, and the flags of drafting, from the outside. Usage: draft_command_test.py BINARY"""

import json
import subprocess

import command_harness


class DraftTest(command_harness.CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pair = {}
        for preset in ("tiny-e", "tiny-moe"):
            cls.pair[preset] = cls.scratch / f"{preset}-paired"
            subprocess.run([cls.binary, "synth", "--preset", preset, "--assistant", "--out", cls.pair[preset]],
                           check=True, capture_output=True)

    def assistant(self, preset):
        return f"{self.pair[preset]}-assistant"

    def draft(self, model, *arguments):
        result = self.run_lapidary("draft", model, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count(b"\n"), 1, "stdout is one line")
        return json.loads(result.stdout)

    def refusal(self, *arguments):
        result = self.run_lapidary(*arguments)
        self.assertEqual(result.returncode, 1, result.stderr)
        return result.stderr.decode()

    def test_a_round_has_the_fields_of_the_contract(self):
        for preset, model in self.pair.items():
            answer = self.draft(model, "--spec-model", self.assistant(preset), "--ids", "2,5,9", "--tokens", "4")
            self.assertEqual(set(answer), {"next_id", "draft_ids", "draft_top"})
            greedy = self.generate("--ids", "2,5,9", "--max-tokens", "1", "--temperature", "0", "--ignore-eos", "--no-spec",
                                   model=model)
            self.assertEqual([answer["next_id"]], greedy["output_ids"])
            self.assertEqual(len(answer["draft_ids"]), 4)
            for token, top in zip(answer["draft_ids"], answer["draft_top"], strict=True):
                self.assertEqual(len(top), 5)
                self.assertEqual(top[0][0], token)
                logits = [logit for _, logit in top]
                self.assertEqual(logits, sorted(logits, reverse=True))
                self.assertEqual(len({entry for entry, _ in top}), 5)

    def test_a_longer_round_goes_on_from_a_shorter(self):
        model = self.pair["tiny-e"]
        short = self.draft(model, "--ids", "2,5,9", "--tokens", "2")
        long = self.draft(model, "--ids", "2,5,9", "--tokens", "6")
        self.assertEqual(long["draft_top"][:2], short["draft_top"])
        self.assertEqual(len(long["draft_ids"]), 6)
        self.assertEqual(len(self.draft(model, "--ids", "2,5,9")["draft_ids"]), 4)

    def test_the_position_shows_in_the_logits(self):
        rounds = [self.draft(self.pair["tiny-moe"], "--ids", "2,5,9,11,4", "--spec-position", position)
                  for position in ("p", "p-1")]
        self.assertNotEqual(rounds[0]["draft_top"], rounds[1]["draft_top"])

    def test_what_cannot_draft_is_refused_with_a_sentence(self):
        self.assertIn("name one with --spec-model", self.refusal("draft", self.model, "--ids", "2"))
        self.assertIn("backbone_hidden_size is 80, the model's 96",
                      self.refusal("draft", self.model, "--ids", "2", "--spec-model", self.assistant("tiny-moe")))
        self.assertIn("is not a Gemma 4 drafting assistant",
                      self.refusal("draft", self.model, "--ids", "2", "--spec-model", str(self.model)))
        self.assertIn("no checkpoint directory", self.refusal("draft", self.model, "--ids", "2", "--spec-model", "/nowhere"))
        self.assertIn("outside the vocabulary", self.refusal("draft", self.pair["tiny-e"], "--ids", "2,99999"))

    def test_drafting_does_not_change_an_answer(self):
        for sampling in (("--temperature", "0"), ("--temperature", "1", "--seed", "3", "--top-k", "40")):
            arguments = ("--ids", "2,300,301", "--max-tokens", "40", "--ignore-eos", *sampling)
            model = self.pair["tiny-e"]
            plain = self.generate(*arguments, "--no-spec", model=model)["output_ids"]
            for flags in ((), ("--spec-tokens", "7", "--spec-fixed"), ("--spec-draw", "coupled"),
                          ("--speculative-config",
                           json.dumps({"model": self.assistant("tiny-e"), "num_speculative_tokens": 2})),
                          ("--spec-method", "auto", "--spec-lookup-min", "1"),
                          ("--no-spec", "--spec-model", "/nowhere")):
                self.assertEqual(self.generate(*arguments, *flags, model=model)["output_ids"], plain, flags)

    def test_repeated_text_is_drafted_without_an_assistant(self):
        arguments = ("--ids", "2,300,301,302,300,301", "--max-tokens", "60", "--ignore-eos", "--temperature", "0")
        plain = self.generate(*arguments, "--no-spec")
        config = {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 5}
        for flags in (("--speculative-config", json.dumps(config)), ("--spec-method", "ngram", "--spec-lookup-max", "2")):
            drafted = self.generate(*arguments, *flags)
            self.assertEqual(drafted["output_ids"], plain["output_ids"])
            self.assertEqual(list(drafted["drafting"]["by_source"]), ["ngram"])

    def test_flags_go_in_their_order(self):
        arguments = ("generate", self.model, "--ids", "2", "--max-tokens", "2")
        other = json.dumps({"model": "/nowhere"})
        self.assertIn("/nowhere", self.refusal(*arguments, "--speculative-config", other))
        right = self.run_lapidary(*arguments, "--speculative-config", other, "--spec-model", self.assistant("tiny-e"))
        self.assertEqual(right.returncode, 0, right.stderr)
        self.assertIn(b"drafting up to 4 tokens a round", right.stderr)
        off = self.run_lapidary(*arguments, "--speculative-config", other, "--no-spec")
        self.assertEqual(off.returncode, 0, off.stderr)
        self.assertNotIn(b"drafting", off.stderr)
        for config, message in (("{", "--speculative-config"), ('{"tokens": 3}', "unknown key 'tokens'"),
                                ('{"method": "eagle"}', "method 'eagle'"),
                                ('{"method": "ngram", "prompt_lookup_max": 0}', "prompt_lookup_max"),
                                ('{"prompt_lookup_min": 5, "prompt_lookup_max": 4}', "must not be more than the most"),
                                ('{"num_speculative_tokens": 99}', "num_speculative_tokens")):
            self.assertIn(message, self.refusal(*arguments, "--speculative-config", config))


if __name__ == "__main__":
    command_harness.main()
