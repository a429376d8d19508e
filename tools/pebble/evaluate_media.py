"""transformers' greedy float32 answers to the questions about pictures and sounds.

    python3 evaluate_media.py MODEL MODEL_DIR OUT_DIR

Writes OUT_DIR/MODEL-media-answers.jsonl (id, right, text, ids) and prints the scores. Files are drawn and read as a user's would
be, prompts come from the checkpoint's own template.
"""
import argparse
import io
import json
import os

import numpy as np
import torch

import pictures
import sounds
from media_evalset import file_of, samples
from tokenizer import SPECIAL
from tower_shapes import MAX_SOFT_TOKENS, TOWERS, CellConfig

ATTENTION = {"": "eager", "text_config": "eager", "vision_config": "eager", "audio_config": "sdpa"}  # eager audio is wrong
STOPS = (1, 106)
NEW = 24


class Reference:
    def __init__(self, model, folder):
        import transformers
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            name = json.load(file)["architectures"][0]
        self.unified = isinstance(TOWERS[model][0], CellConfig)
        kind = "Gemma4Unified" if self.unified else "Gemma4"
        self.net, info = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32, attn_implementation=ATTENTION,
                                                                     output_loading_info=True)
        if info["missing_keys"] or info["unexpected_keys"]:
            raise SystemExit(f"{folder}: {info}")
        self.net.eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.images = getattr(transformers, kind + "ImageProcessor")(max_soft_tokens=MAX_SOFT_TOKENS)
        self.audio = getattr(transformers, kind + "AudioFeatureExtractor")()

    def inputs(self, item, data):
        """(what forward takes of the file, its soft tokens)."""
        if item["file"].endswith("png"):
            from PIL import Image
            made = self.images([Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="pt")
            return {key: made[key] for key in ("pixel_values", "image_position_ids")}, int(made["num_soft_tokens_per_image"][0])
        samples = np.frombuffer(data[44:], "<i2").astype(np.float32) / 32768
        made = self.audio([samples], return_tensors="pt")
        return {key: made[key] for key in ("input_features", "input_features_mask")}, -(-len(samples) // sounds.PIECE)

    def prompt(self, item, count):
        kind = "image" if item["file"].endswith("png") else "audio"
        content = [{"type": kind}, {"type": "text", "text": item["ask"]}]
        ids = self.tokenizer.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True,
                                                 tokenize=True, return_dict=False)
        at = ids.index(SPECIAL[f"<|{kind}|>"])
        return ids[:at] + [SPECIAL[f"<|{kind}>"]] + [ids[at]] * count + [SPECIAL[f"<{kind}|>"]] + ids[at + 1:]

    @torch.no_grad()
    def best(self, ids, inputs):
        """The first choice behind every token."""
        row = torch.tensor([ids])
        types = (row == SPECIAL["<|image|>"]) * 1 + (row == SPECIAL["<|audio|>"]) * 3
        extra = {}
        if self.unified:  # forward makes the masks of an older rule by itself
            extra["attention_mask"] = self.net.create_masks_for_generate(
                self.net.config, torch.zeros(1, len(ids), 0), None, None, torch.arange(len(ids))[None], mm_token_type_ids=types)
        return self.net(input_ids=row, mm_token_type_ids=types, use_cache=False, **inputs, **extra).logits[0].argmax(-1).tolist()

    def answer(self, item, data):
        """Its greedy answer: where every token of the wanted one is the first choice, that one; else token by token."""
        inputs, count = self.inputs(item, data)
        prompt = self.prompt(item, count)
        wanted = self.tokenizer.encode(item["answer"] + "<turn|>", add_special_tokens=False)
        best, answer = self.best(prompt + wanted, inputs)[len(prompt) - 1:], []
        for token, guess in zip(best, wanted):
            answer.append(token)
            if token != guess:
                break
        while answer[-1] not in STOPS and len(answer) < NEW:
            answer.append(self.best(prompt + answer, inputs)[-1])
        return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TOWERS))
    parser.add_argument("folder")
    parser.add_argument("out")
    args = parser.parse_args()
    reference, scores = Reference(args.model, args.folder), {}
    masks, waves = pictures.masks(), sounds.waves()
    with open(os.path.join(args.out, f"{args.model}-media-answers.jsonl"), "w", encoding="utf-8") as file:
        for item, sample in samples():
            ids = reference.answer(item, file_of(sample, masks, waves))
            text = reference.tokenizer.decode(ids)
            right = text == item["answer"] + "<turn|>"
            scores.setdefault(item["task"], []).append(right)
            file.write(json.dumps({"id": item["id"], "right": right, "text": text, "ids": ids}) + "\n")
    for task, found in scores.items():
        print(f"{task}: {sum(found)} of {len(found)}")
    print(f"all: {sum(map(sum, scores.values()))} of {sum(map(len, scores.values()))}")


if __name__ == "__main__":
    main()
