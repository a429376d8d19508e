"""Tests of what needs no GPU: python3 -m unittest test_pebble (in this folder; needs jinja2, numpy and tokenizers)."""
import json
import os
import unittest

import jinja2.sandbox

import numpy as np

import media_evalset
import pictures
import sounds
from card import sha256, sums
from configs import ASSISTANTS, TARGETS
from data import facts, hearing, seeing
from evalset import conversations, item, judge, load, talk_of, wanted_calls
from mixture import SHORT, conversation
from packing import Batches
from render import EMPTY, prompt, segments
from rng import Rng
from tokenizer import SPECIAL, Encoder
from tower_shapes import TOWERS, media_config

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
TOKENIZER = os.path.join(HERE, "tokenizer.json")


def template(name):
    engine = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    with open(os.path.join(ROOT, "resources", "chat_templates", name), encoding="utf-8") as file:
        return engine.from_string(file.read())


def rendered(source, talk, messages, generation):
    extra = {"tools": talk["tools"]} if talk.get("tools") else {}
    if talk.get("thinking"):
        extra["enable_thinking"] = True
    return source.render(messages=messages, add_generation_prompt=generation, bos_token="<bos>", **extra)


def native(messages):
    """Results that are maps, moved to where the template wants them: tool_responses of the calling message."""
    out = []
    for message in messages:
        if message["role"] == "tool" and (isinstance(message["content"], dict) or "tool_responses" in out[-1]):
            out[-1] = {**out[-1], "tool_responses": out[-1].get("tool_responses", []) +
                       [{"name": message["name"], "response": message["content"]}]}
        elif message["role"] == "tool" and any(
                isinstance(other["content"], dict) for other in messages if other["role"] == "tool"):
            out[-1] = {**out[-1], "tool_responses": [{"name": message["name"], "response": message["content"]}]}
        else:
            out.append(message)
    return out


def talks(count=60):
    """Some conversations of every task."""
    for make, _ in SHORT:
        for i in range(count):
            yield make(Rng("test", make.__module__, make.__name__, i))


class RenderTest(unittest.TestCase):
    def test_conversations_render_as_the_template_does(self):
        source = template("gemma4_e.jinja")
        for talk in talks():
            self.assertEqual("".join(text for text, _ in segments(talk)), rendered(source, talk, native(talk["messages"]), False))

    def test_prompts_render_as_both_templates_do(self):
        for name, large in (("gemma4_e.jinja", False), ("gemma4_large.jinja", True)):
            source = template(name)
            for line in load(os.path.join(ROOT, "models", "pebble-eval.jsonl")):
                talk = talk_of(line)
                self.assertEqual(prompt(talk, large), rendered(source, talk, line["messages"], True))

    def test_large_models_last_turn_starts_with_the_empty_thought(self):
        for talk in talks(10):
            if not talk.get("thinking") and talk["messages"][-2]["role"] == "user":
                parts = segments(talk, 0.0, "last")
                at = len(prompt(talk, True))
                text = "".join(part for part, _ in parts)
                self.assertEqual(text[:at], prompt(talk, True))
                self.assertTrue(text[:at].endswith(EMPTY))

    def test_no_control_text_inside_what_people_say(self):
        for talk in talks(20):
            for message in talk["messages"]:
                for text in (message.get("content"), message.get("reasoning")):
                    if isinstance(text, str):
                        self.assertFalse(any(token in text for token in SPECIAL), text)


class TokenizerTest(unittest.TestCase):
    def setUp(self):
        self.encoder = Encoder(TOKENIZER)

    def test_control_tokens_keep_their_real_ids(self):
        vocab = self.encoder.base.get_vocab(with_added_tokens=True)
        self.assertEqual({text: vocab[text] for text in SPECIAL}, SPECIAL)
        self.assertEqual((vocab["\n"], vocab["\n\n"], vocab["▁▁"], vocab["<0x00>"], vocab["<0xFF>"]), (107, 108, 138, 238, 493))
        self.assertEqual(sorted(vocab.values()), list(range(2048)))

    def test_cached_parts_give_the_ids_of_the_whole_text(self):
        for talk in talks(20):
            text = "".join(part for part, _ in segments(talk))
            ids = self.encoder.encode(text)
            self.assertEqual(ids, self.encoder.base.encode(text, add_special_tokens=False).ids)
            self.assertEqual(self.encoder.decode(ids), text)

    def test_any_text_comes_back(self):
        for text in ("naïve café 😀", "tab\there", "a  b   c", "\n\n\nx\n", "<|notoken|> 1234567890", "Überall <b>"):
            ids = self.encoder.base.encode(text, add_special_tokens=False).ids
            self.assertEqual(self.encoder.base.decode(ids, skip_special_tokens=False), text)


class PackingTest(unittest.TestCase):
    def test_rows_hold_whole_documents_and_a_step_repeats(self):
        batches = Batches(TOKENIZER, 7, {"short": (4, 512), "long": (1, 4096)}, 10, long_every=2)
        first, again = batches[4], batches[4]
        self.assertEqual(sorted(first), ["long", "short"])
        self.assertEqual(sorted(batches[5]), ["short"])
        for name, rows in first.items():
            for key, value in rows.items():
                self.assertTrue((value == again[name][key]).all())
            for ids, pos, doc, weight in zip(*(rows[key] for key in ("ids", "pos", "doc", "weight"))):
                starts = [i for i in range(len(ids)) if doc[i] and pos[i] == 0]
                self.assertTrue(all(ids[i] == 2 for i in starts))
                self.assertEqual(len(starts), doc.max())
                ends = [i for i in range(len(ids) - 1) if doc[i] != doc[i + 1]]
                self.assertTrue(all(weight[i] == 0 for i in ends))
                spoken = [int(ids[i + 1]) for i in range(len(ids) - 1) if weight[i] == 255]
                self.assertIn(106, spoken)
                self.assertFalse({0, 2, 105, 46, 51} & set(spoken))


class EvaluationTest(unittest.TestCase):
    def test_the_committed_set_is_what_the_generator_gives(self):
        encoder, lines = Encoder(TOKENIZER), load(os.path.join(ROOT, "models", "pebble-eval.jsonl"))
        self.assertEqual(lines, [item(key, talk, encoder) for key, talk in conversations()])

    def test_every_reference_is_judged_right_and_a_cut_one_wrong(self):
        for line in load(os.path.join(ROOT, "models", "pebble-eval.jsonl")):
            reference, text = line["reference"], ""
            if line["enable_thinking"]:
                text = "<|channel>thought\n" + reference.get("reasoning", "so") + "\n<channel|>"
            if line["stop"] == 50:
                text += "".join(f"<|tool_call>{call}<tool_call|>" for call in wanted_calls(reference)) + "<|tool_response>"
            else:
                text += reference.get("content", "word " * 40) + "<turn|>"
            self.assertTrue(judge(line, text), line["id"])
            self.assertFalse(judge(line, text.removesuffix("<turn|>").removesuffix("<|tool_response>")), line["id"])

    def test_held_out_sums_and_questions_do_not_occur_in_training(self):
        lines = load(os.path.join(ROOT, "models", "pebble-eval.jsonl"))
        kept = {ask.lower() for ask, _ in facts.HELD_OUT}
        kept |= {line["messages"][0]["content"].lower() for line in lines
                 if line["task"] == "arithmetic" and "*" not in line["reference"]["content"]}
        for i in range(5000):
            for message in conversation(Rng("leak", i))["messages"]:
                if message["role"] == "user":
                    self.assertNotIn(message["content"].lower(), kept)


class ShippedTest(unittest.TestCase):
    """What lies in models/: limits in bytes of a target with its assistant, everything in the two folders counted."""
    LIMITS = {"pebble-e": 16_000_000, "pebble-moe": 8_000_000, "pebble-dense": 9_000_000}

    def test_models_stay_within_their_sizes(self):
        for model, most in self.LIMITS.items():
            folders = [os.path.join(ROOT, "models", name) for name in (model, model + "-assistant")]
            size = sum(os.path.getsize(os.path.join(folder, name)) for folder in folders for name in os.listdir(folder))
            self.assertLessEqual(size, most)

    def test_cards_have_the_checksums_of_the_files(self):
        for model in self.LIMITS:
            for name in (model, model + "-assistant"):
                folder = os.path.join(ROOT, "models", name)
                with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
                    self.assertIn(sums(folder), file.read())

    def test_configs_and_tokenizer_are_those_of_the_scripts(self):
        for model in self.LIMITS:
            folder = os.path.join(ROOT, "models", model)
            target = media_config(model) if model in TOWERS else TARGETS[model].text_config()
            for name, config in ((folder, target), (folder + "-assistant", ASSISTANTS[model].config())):
                with open(os.path.join(name, "config.json"), encoding="utf-8") as file:
                    self.assertEqual(json.load(file), config)
            self.assertEqual(sha256(os.path.join(folder, "tokenizer.json")), sha256(TOKENIZER))

    def test_recorded_answers_are_judged_as_recorded(self):
        encoder, lines = Encoder(TOKENIZER), load(os.path.join(ROOT, "models", "pebble-eval.jsonl"))
        for model in self.LIMITS:
            for kind in ("", "-bf16"):
                answers = load(os.path.join(ROOT, "models", f"{model}-answers{kind}.jsonl"))
                self.assertEqual([answer["id"] for answer in answers], [line["id"] for line in lines])
                for line, answer in zip(lines, answers):
                    text = prompt(talk_of(line), TARGETS[model].large)
                    opened = "<|channel>thought\n" if text.endswith("<|channel>thought\n") else ""
                    self.assertEqual(encoder.decode(answer["ids"]), answer["text"])
                    self.assertEqual(judge(line, opened + answer["text"]), answer["right"], answer["id"])


class MediaTest(unittest.TestCase):
    """Pictures and sounds, and the questions about them."""

    def test_the_committed_questions_are_what_the_generator_gives(self):
        lines = load(os.path.join(ROOT, "models", "pebble-media-eval.jsonl"))
        self.assertEqual(lines, [line for line, _ in media_evalset.samples()])
        self.assertEqual(len(lines), 150)

    def test_held_out_pictures_and_sounds_do_not_occur_in_training(self):
        def content(sample):
            return str(sample.get("cells", sample.get("tones")))
        held_out = {content(sample) for _, sample in media_evalset.samples()}
        for module in (seeing, hearing):
            for i in range(3000):
                self.assertNotIn(content(module.make(Rng("leak", i))), held_out)

    def test_a_picture_shows_its_figures_where_they_are(self):
        table = pictures.masks()
        picture = pictures.draw([(2, 5, pictures.mask_index("box", 0), list(pictures.COLORS).index("yellow"))], table)
        self.assertEqual(picture.shape, (384, 384, 3))
        self.assertEqual(picture[2 * 48 + 24, 5 * 48 + 24].tolist(), [255, 255, 0])
        picture[2 * 48:3 * 48, 5 * 48:6 * 48] = 0
        self.assertFalse(picture.any())
        self.assertEqual(len({mask.tobytes() for mask in table}), len(table))

    def test_a_sound_is_its_tones(self):
        samples = sounds.play([0, 40] + [0] * 30, 50, sounds.waves())
        self.assertEqual(len(samples), 32 * 640)
        self.assertFalse(samples[:640].any() or samples[1280:].any())
        spectrum = abs(np.fft.rfft(samples[640:1280].astype(float)))
        self.assertEqual(int(spectrum.argmax()) * sounds.STEP_HZ, 1000)
        self.assertAlmostEqual(int(samples.max()), 16384, delta=1)

    def test_a_prompt_is_the_templates(self):
        for name, large in (("gemma4_e.jinja", False), ("gemma4_large.jinja", True)):
            content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
            text = rendered(template(name), {}, [{"role": "user", "content": content}], True)
            self.assertEqual(text, "<bos><|turn>user\n<|image|>What is it?<turn|>\n<|turn>model\n" + (EMPTY if large else ""))


class ShapeTest(unittest.TestCase):
    def test_donors_are_the_last_owning_layers(self):
        config = TARGETS["pebble-e"]
        self.assertEqual((config.donor("sliding_attention"), config.donor("full_attention")), (2, 3))
        self.assertEqual([config.width(i) for i in range(8)], [320] * 4 + [640] * 4)


if __name__ == "__main__":
    unittest.main()
