"""The bundled models answer as transformers does. Usage: pebble_eval_test.py BINARY MODELS_DIR [N]

Every models/pebble-* with weights answers the evaluation set (or N items of it, pebble-e alone) as its recorded
float32 answers say, but for one item at most, and scores what its card says. It is drafted for by its assistant, three
tokens a round, of which as many are accepted as that one's card says. Those that see and hear are asked about pictures
and sounds as well.
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

MAX_DIFFERENCES = 1
NUM_ITEMS = 500
REQUIRED_MODEL = "pebble-e"
REQUIRED_ACCURACY = 0.9  # of pebble-e, in every task
NUM_MEDIA_ITEMS = 150
REQUIRED_MEDIA_ACCURACY = 0.9  # of every model that sees and hears, over all
ACCEPT_LENGTH_TOLERANCE = 0.02


def card_scores(card):
    """{task: share} of the float32 column of a model's README."""
    header = re.search(r"^\| task \|(.*)\|$", card, re.MULTILINE)
    columns = [name.strip() for name in header[1].split("|")]
    column = columns.index("float32")
    scores = {}
    for line in card[header.end():].splitlines()[2:]:
        if not line.startswith("|"):
            break
        task, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        scores[task] = cells[column]
    return scores


def card_accept_length(card):
    """Tokens a round over all tasks, of an assistant's README."""
    return float(re.search(r"^\| all \| ([0-9.]+) \|", card, re.MULTILINE)[1])


class PebbleEvalTest(unittest.TestCase):
    def evaluate(self, model):
        command = [BINARY, "eval", model, "--suite", "pebble", "--json", "--device", "cpu",
                   "--spec-tokens", "3", "--spec-fixed"]
        if SUBSET:
            command += ["--n", SUBSET]
        result = subprocess.run(command, stdout=subprocess.PIPE)
        self.assertEqual(result.returncode, 0)
        return json.loads(result.stdout)

    def check(self, model):
        report = self.evaluate(model)
        self.assertEqual(report["count"], int(SUBSET or NUM_ITEMS))
        self.assertIn("agreement", report, f"{model.name}-answers.jsonl is missing")
        agreement = report["agreement"]
        print(f"{model.name}: {report['correct']} of {report['count']} right, {agreement['same_answer']} as "
              f"recorded, {agreement['same_verdict']} with the same verdict")
        self.assertEqual(agreement["count"], report["count"])
        self.assertLessEqual(agreement["count"] - agreement["same_answer"], MAX_DIFFERENCES, agreement["differences"])
        print(f"{model.name}: {report['drafting']['accept_length']:.3f} tokens a round")
        self.assertGreater(report["drafting"]["accept_length"], 2.0)
        if not SUBSET:
            self.check_card(model, report)
            self.check_media(model, report)
            card = (model.parent / f"{model.name}-assistant" / "README.md").read_text(encoding="utf-8")
            expected = card_accept_length(card)
            self.assertAlmostEqual(report["drafting"]["accept_length"], expected,
                                   delta=ACCEPT_LENGTH_TOLERANCE * expected)

    def check_media(self, model, report):
        """Pictures and sounds: the models that take them are asked about all, by themselves and as transformers answers."""
        self.assertEqual("media" in report, (model / "processor_config.json").exists())
        if "media" not in report:
            return
        media, agreement = report["media"], report["media"]["agreement"]
        print(f"{model.name}: {media['correct']} of {media['count']} about pictures and sounds right, "
              f"{agreement['same_answer']} as recorded")
        self.assertEqual([media["count"], agreement["count"]], [NUM_MEDIA_ITEMS] * 2)
        self.assertGreaterEqual(media["accuracy"], REQUIRED_MEDIA_ACCURACY, media["tasks"])
        self.assertLessEqual(agreement["count"] - agreement["same_answer"], MAX_DIFFERENCES, agreement["differences"])

    def check_card(self, model, report):
        differing = {line["id"].rsplit("-", 1)[0] for line in report["agreement"]["differences"]}
        ours = {}
        for task, score in report["tasks"].items():
            if model.name == REQUIRED_MODEL:
                self.assertGreaterEqual(score["accuracy"], REQUIRED_ACCURACY, task)
            if task in differing:
                continue
            ours[task] = score["accuracy"]
            ours.update({f"{task} {name}": part["accuracy"] for name, part in score.get("bins", {}).items()})
        card = card_scores((model / "README.md").read_text(encoding="utf-8"))
        self.assertEqual({task: f"{100 * round(share, 4):.1f} %" for task, share in ours.items()},
                         {task: share for task, share in card.items() if task.split()[0] not in differing})

    def test_models_answer_as_recorded(self):
        models = [path for path in sorted(MODELS.glob("pebble-*"))
                  if path.is_dir() and not path.name.endswith("-assistant")]
        names = [path.name for path in models]
        self.assertIn(REQUIRED_MODEL, names, f"{MODELS} has no {REQUIRED_MODEL}, the bundled default model")
        for model in models:
            if SUBSET and model.name != REQUIRED_MODEL:
                continue
            with self.subTest(model=model.name):
                self.check(model)


if __name__ == "__main__":
    BINARY, MODELS = sys.argv[1], pathlib.Path(sys.argv[2])
    SUBSET = sys.argv[3] if len(sys.argv) > 3 else None
    unittest.main(argv=sys.argv[:1], verbosity=2)
