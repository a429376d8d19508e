#!/usr/bin/env python3
"""Goldens of pictures and sounds: what transformers' processors make of them.

  tools/make_media_goldens.py files --out tests/data/media         (numpy, Pillow)
  tools/make_media_goldens.py preprocess --files tests/data/media --out tests/goldens
                                                                   (transformers 5.17, torchvision)

`files` draws the small files that the tests decode. `preprocess` writes media-preprocess.safetensors: the
pixels Pillow decodes from each file, digests of resized random pictures, the patches and the mel frames.
"""

import argparse
import math
import pathlib
import wave

import numpy as np

SEED = 7
# (height, width) -> (height, width): enlarged, shrunk, one axis kept, both; odd sides and long thin ones.
RESIZES = [
    (224, 224, 384, 384), (37, 53, 336, 480), (300, 200, 48, 96), (480, 640, 336, 432), (5, 400, 48, 3360),
    (400, 7, 960, 48), (48, 96, 48, 96), (48, 100, 48, 96), (99, 96, 96, 96), (1, 1, 48, 48), (130, 97, 96, 48),
    (1000, 3, 1008, 48), (517, 389, 528, 384),
]


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
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
