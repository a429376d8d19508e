#!/usr/bin/env python3
"""Goldens of pictures and sounds: what transformers' processors, towers and models make of them.

  tools/make_media_goldens.py files --out tests/data/media         (numpy, Pillow)
  tools/make_media_goldens.py preprocess --files tests/data/media --out tests/goldens
                                                                   (transformers 5.17, torchvision)
  tools/make_media_goldens.py synth --lapidary build/lapidary --checkpoints DIR
  tools/make_media_goldens.py run --files tests/data/media --checkpoints DIR --out tests/goldens
                                                                   (transformers 5.17, torchvision)

`files` draws the small files that the tests decode. `preprocess` writes media-preprocess.safetensors: the
pixels Pillow decodes from each file, digests of resized random pictures, the patches and the mel frames.
`synth` makes a small random checkpoint of every kind, `run` writes NAME.safetensors for each: soft tokens of
every file, and for each prompt its ids, which files its placeholders stand for, the logits of some positions
(rows) and greedy tokens. Weights are not stored: the tests make the same checkpoint again from
tests/goldens/NAME.config.json and the seed.

Towers, mask and traps: audio attention runs as sdpa, for the reference's eager mask is inverted; the unified
model gets the masks of its own create_masks_for_generate, not those its forward makes.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import wave

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_goldens import ROOT, SEED, pattern, text_config  # noqa: E402

NUM_GREEDY = 24
BUDGET = 70
# (height, width) -> (height, width): enlarged, shrunk, one axis kept, both; odd sides and long thin ones.
RESIZES = [
    (224, 224, 384, 384), (37, 53, 336, 480), (300, 200, 48, 96), (480, 640, 336, 432), (5, 400, 48, 3360),
    (400, 7, 960, 48), (48, 96, 48, 96), (48, 100, 48, 96), (99, 96, 96, 96), (1, 1, 48, 48), (130, 97, 96, 48),
    (1000, 3, 1008, 48), (517, 389, 528, 384),
]


IMAGE, AUDIO, VIDEO = 150, 151, 152
IDS = dict(image_token_id=IMAGE, audio_token_id=AUDIO, video_token_id=VIDEO, boi_token_id=153, eoi_token_id=154,
           boa_token_id=155, eoa_token_index=156)

VISION = dict(model_type="gemma4_vision", hidden_size=48, intermediate_size=100, num_hidden_layers=2,
              num_attention_heads=3, num_key_value_heads=3, head_dim=16, position_embedding_size=64)
AUDIO_TOWER = dict(model_type="gemma4_audio", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                   subsampling_conv_channels=[128, 4], output_proj_dims=40)


def wrapper(text, **towers):
    unified = text["model_type"] == "gemma4_unified_text"
    name = "Gemma4UnifiedForConditionalGeneration" if unified else "Gemma4ForConditionalGeneration"
    return {"architectures": [name], "model_type": "gemma4_unified" if unified else "gemma4",
            "tie_word_embeddings": True, "text_config": text,
            "vision_config": None, "audio_config": None, **IDS, **towers}


# Every kind of tower, beside every kind of decoder it comes with.
MODELS = {
    # Tower S, clipped; conformer; per-layer embeddings and shared KV; attention is causal.
    "media-e": wrapper(
        text_config(hidden_size_per_layer_input=12, num_kv_shared_layers=3, layer_types=pattern("sfsfsfs")),
        vision_config=dict(VISION, use_clipped_linears=True), audio_config=AUDIO_TOWER),
    # Tower L, standardized, heads of 24 dims, no audio; images see both ways, past the window.
    "media-dense": wrapper(
        text_config(use_bidirectional_attention="vision", attention_k_eq_v=True, num_global_key_value_heads=1,
                    sliding_window=24),
        vision_config=dict(VISION, standardize=True, head_dim=24)),
    # The same with experts, and a window longer than an image.
    "media-moe": wrapper(
        text_config(use_bidirectional_attention="vision", enable_moe_block=True, num_experts=6, top_k_experts=3,
                    moe_intermediate_size=20, num_key_value_heads=4, sliding_window=80,
                    layer_types=pattern("sfssfsf")),
        vision_config=dict(VISION, standardize=True)),
    # No encoders.
    "media-unified": wrapper(
        text_config(model_type="gemma4_unified_text", hidden_size_per_layer_input=...,
                    vocab_size_per_layer_input=..., num_kv_shared_layers=..., attention_k_eq_v=True,
                    num_global_key_value_heads=1, use_bidirectional_attention="vision", sliding_window=24),
        vision_config=dict(model_type="gemma4_unified_vision", mm_embed_dim=40, output_proj_dims=40,
                           mm_posemb_size=24),
        audio_config=dict(model_type="gemma4_unified_audio", audio_embed_dim=640)),
}
IMAGES = ["turned.jpg", "alpha.png"]
SOUNDS = ["tune.wav", "short.wav"]


def noise(count):
    """Bytes of a linear congruential generator, as the tests make them again."""
    state, values = 12345, bytearray(count)
    for idx in range(count):
        state = (state * 1664525 + 1013904223) % (1 << 32)
        values[idx] = state >> 24
    return np.frombuffer(bytes(values), dtype=np.uint8)


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def drawing(height, width):
    """Smooth shapes with hard edges, in three channels that differ."""
    rows, columns = np.mgrid[0:height, 0:width]
    picture = np.zeros((height, width, 3))
    picture[..., 0] = 255 * columns / max(width - 1, 1)
    picture[..., 1] = 127 + 120 * np.sin(rows / 3.0 + columns / 7.0)
    picture[..., 2] = 255 * ((rows - height / 2) ** 2 + (columns - width / 2) ** 2 < (height / 3) ** 2)
    return picture.round().astype(np.uint8)


def tune(num_samples):
    """A rising tone over noise, 16-bit."""
    time = np.arange(num_samples) / 16000
    tone = 0.4 * np.sin(2 * math.pi * (300 * time + 900 * time**2))
    hiss = (noise(num_samples).astype(np.float64) - 127.5) / 1275
    return ((tone + hiss) * 32767).round().clip(-32768, 32767).astype("<i2")


def files(options):
    from PIL import Image

    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    colours = Image.fromarray(drawing(37, 29))
    alpha = Image.fromarray(np.dstack([drawing(19, 23), noise(19 * 23).reshape(19, 23)]))
    exif = Image.Exif()
    exif[0x0112] = 6
    colours.save(out / "turned.jpg", quality=80, subsampling=2, exif=exif)
    colours.save(out / "progressive.jpg", quality=70, progressive=True)
    colours.convert("L").save(out / "grey.jpg", quality=80)
    colours.convert("CMYK").save(out / "inks.jpg", quality=90)
    colours.quantize(13).save(out / "palette.png", transparency=3)
    colours.convert("1").save(out / "one_bit.png")
    exif[0x0112] = 5
    colours.save(out / "mirrored.png", exif=exif)
    alpha.save(out / "alpha.png")
    alpha.convert("LA").save(out / "grey_alpha.png")
    alpha.save(out / "alpha.webp", lossless=True, exact=True)
    exif[0x0112] = 3
    colours.save(out / "lossy.webp", quality=60, exif=exif)
    for name, num_samples in {"tune.wav": 9000, "short.wav": 1500}.items():
        with wave.open(str(out / name), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(16000)
            sound.writeframes(tune(num_samples).tobytes())


def samples_of(path):
    with wave.open(str(path)) as sound:
        data = sound.readframes(sound.getnframes())
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / 32768


def preprocess(options):
    import torch
    import torchvision
    import transformers
    from safetensors.torch import save_file
    from torchvision.transforms.v2 import functional as tvF
    from transformers.image_utils import load_image

    tensors = {}
    for path in sorted(options.files.iterdir()):
        if path.suffix in (".jpg", ".png", ".webp"):
            tensors[f"pixels.{path.name}"] = torch.from_numpy(np.array(load_image(str(path))))
    digests = []
    for height, width, to_height, to_width in RESIZES:
        picture = torch.from_numpy(noise(height * width * 3).reshape(height, width, 3).copy()).permute(2, 0, 1)
        resized = tvF.resize(picture, [to_height, to_width], interpolation=tvF.InterpolationMode.BICUBIC,
                             antialias=True)
        digests.append(np.array([fnv(resized.permute(1, 2, 0).contiguous().numpy().tobytes())],
                                dtype=np.uint64).view(np.int64)[0])
    tensors["resize.sizes"] = torch.tensor(RESIZES, dtype=torch.int32)
    tensors["resize.digests"] = torch.tensor(np.array(digests))
    processor = transformers.Gemma4ImageProcessor(max_soft_tokens=70)
    image = processor(load_image(str(options.files / "turned.jpg")), return_tensors="pt")
    num_patches = 9 * int(image["num_soft_tokens_per_image"][0])
    patches = image["pixel_values"][0, :num_patches].contiguous().numpy()
    tensors["patches.shape"] = torch.tensor(patches.shape, dtype=torch.int32)
    tensors["patches.first"] = torch.from_numpy(patches[0].copy())
    tensors["patches.digest"] = torch.tensor([np.array([fnv(patches.tobytes())], dtype=np.uint64).view(np.int64)[0]])
    extractor = transformers.Gemma4AudioFeatureExtractor()
    for name in ("tune.wav", "short.wav"):
        features = extractor([samples_of(options.files / name)], return_tensors="np")
        mask = features["input_features_mask"][0].astype(bool)
        tensors[f"mel.{name}"] = torch.from_numpy(features["input_features"][0][mask].astype(np.float32))
        print(name, tensors[f"mel.{name}"].shape)
    options.out.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              options.out / "media-preprocess.safetensors", metadata={
        "command": "tools/make_media_goldens.py preprocess --files tests/data/media --out tests/goldens",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    })


def synth(options):
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    for name, config in MODELS.items():
        config_path = ROOT / "tests" / "goldens" / f"{name}.config.json"
        config_path.write_text(json.dumps(config, indent=1) + "\n")
        subprocess.run([str(options.lapidary), "synth", "--seed", str(SEED), "--dtype", "f32", "--config",
                        str(config_path), "--out", str(options.checkpoints / name)], check=True)


def load(directory):
    import torch
    import transformers

    config = json.loads((directory / "config.json").read_text())
    attention = {"": "eager", "text_config": "eager", "vision_config": "eager", "audio_config": "sdpa"}
    model, info = getattr(transformers, config["architectures"][0]).from_pretrained(
        directory, dtype=torch.float32, attn_implementation=attention, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        sys.exit(f"{directory}: missing {sorted(info['missing_keys'])[:5]}, "
                 f"unexpected {sorted(info['unexpected_keys'])[:5]}")
    return model.eval(), config


def prompts(counts, has_audio):
    """Ids with placeholders expanded, and the files they stand for, in order."""
    def words(count, state):
        ids = []
        for _ in range(count):
            state = (state * 1103515245 + 12345) % (1 << 31)
            ids.append(3 + (state >> 8) % 140)
        return ids

    def medium(name):
        if name in IMAGES:
            return [IDS["boi_token_id"]] + [IMAGE] * counts[name] + [IDS["eoi_token_id"]]
        return [IDS["boa_token_id"]] + [AUDIO] * counts[name] + [IDS["eoa_token_index"]]

    made = {"one": ([2] + words(5, 1) + medium(IMAGES[0]) + words(9, 2), [IMAGES[0]]),
            "two": (medium(IMAGES[1]) + words(3, 3) + medium(IMAGES[0]) + words(2, 4), [IMAGES[1], IMAGES[0]])}
    if has_audio:
        made["all"] = ([2] + words(4, 5) + medium(SOUNDS[0]) + words(3, 6) + medium(IMAGES[1]) + words(2, 7) +
                       medium(SOUNDS[1]) + words(1, 8), [SOUNDS[0], IMAGES[1], SOUNDS[1]])
    return made


def model_inputs(model, config, ids, inputs):
    """Arguments of forward for these ids; `inputs` as the processors made them."""
    import torch

    row = torch.tensor([ids])
    types = torch.zeros_like(row)
    types[row == IMAGE] = 1
    types[row == AUDIO] = 3
    arguments = dict(input_ids=row, use_cache=False, mm_token_type_ids=types, **inputs)
    if config["model_type"] == "gemma4_unified":
        positions = torch.arange(len(ids))[None]
        arguments["attention_mask"] = model.create_masks_for_generate(
            model.config, torch.zeros(1, len(ids), 0), None, None, positions, mm_token_type_ids=types)
    return arguments


def run(options):
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.image_utils import load_image

    for name in MODELS:
        model, config = load(options.checkpoints / name)
        unified = config["model_type"] == "gemma4_unified"
        has_audio = config["audio_config"] is not None
        prefix = "Gemma4Unified" if unified else "Gemma4"
        image_processor = getattr(transformers, prefix + "ImageProcessor")(max_soft_tokens=BUDGET)
        extractor = getattr(transformers, prefix + "AudioFeatureExtractor")()
        tensors, counts = {}, {}

        def inputs_of(names):
            images = [load_image(str(options.files / name)) for name in names if name in IMAGES]
            sounds = [samples_of(options.files / name) for name in names if name in SOUNDS]
            inputs = {}
            if images:
                made = image_processor(images, return_tensors="pt")
                inputs |= {key: made[key] for key in ("pixel_values", "image_position_ids")}
            if sounds:
                made = extractor(sounds, return_tensors="pt")
                inputs |= {key: made[key] for key in ("input_features", "input_features_mask")}
            return inputs

        with torch.no_grad():
            for file in IMAGES + SOUNDS * has_audio:
                inputs = inputs_of([file])
                if file in IMAGES:
                    soft = model.model.get_image_features(**inputs, return_dict=True).pooler_output[0]
                else:
                    heard = model.model.get_audio_features(**inputs, return_dict=True)
                    soft = heard.pooler_output[heard.attention_mask.bool()]
                tensors[f"soft.{file}"] = soft.float()
                counts[file] = soft.shape[0]
            for prompt_name, (ids, files_used) in prompts(counts, has_audio).items():
                inputs = inputs_of(files_used)
                logits = model(**model_inputs(model, config, ids, inputs)).logits[0].float()
                sequence = list(ids)
                for _ in range(NUM_GREEDY):
                    last = model(**model_inputs(model, config, sequence, inputs)).logits[0, -1]
                    # A generated placeholder would stand for nothing.
                    last[[IMAGE, AUDIO, VIDEO]] = -float("inf")
                    sequence.append(int(last.argmax()))
                rows = sorted({*range(0, len(ids), 7), *range(len(ids) - 6, len(ids))})
                tensors[f"{prompt_name}.ids"] = torch.tensor(ids, dtype=torch.int32)
                tensors[f"{prompt_name}.rows"] = torch.tensor(rows, dtype=torch.int32)
                tensors[f"{prompt_name}.logits"] = logits[rows]
                tensors[f"{prompt_name}.greedy"] = torch.tensor(sequence[len(ids):], dtype=torch.int32)
                tensors[f"{prompt_name}.files"] = torch.tensor(
                    [(IMAGES + SOUNDS).index(file) for file in files_used], dtype=torch.int32)
                print(f"{name} {prompt_name}: {len(ids)} tokens, max |logit| {logits.abs().max():.2f}, "
                      f"{len(set(sequence[len(ids):]))} distinct greedy tokens")
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, options.out / f"{name}.safetensors",
                  metadata={
            "command": "tools/make_media_goldens.py run --files tests/data/media --checkpoints DIR "
                       "--out tests/goldens",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "dtype": "float32",
            "seed": str(SEED),
            "synth_args": "--dtype f32",
        })


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("files")
    command.add_argument("--out", type=pathlib.Path, required=True)
    command.set_defaults(run=files)
    command = commands.add_parser("preprocess")
    command.add_argument("--files", type=pathlib.Path, required=True)
    command.add_argument("--out", type=pathlib.Path, required=True)
    command.set_defaults(run=preprocess)
    command = commands.add_parser("synth")
    command.add_argument("--lapidary", type=pathlib.Path, required=True)
    command.add_argument("--checkpoints", type=pathlib.Path, required=True)
    command.set_defaults(run=synth)
    command = commands.add_parser("run")
    command.add_argument("--files", type=pathlib.Path, required=True)
    command.add_argument("--checkpoints", type=pathlib.Path, required=True)
    command.add_argument("--out", type=pathlib.Path, required=True)
    command.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
