#!/usr/bin/env python3
"""How far the logits of random models move when one small thing is rounded otherwise.

A model of random weights is run on the CPU in float32, then again with about half of the values of
some norms one bf16 step larger. What that does to the logits is what any other order of bf16
roundings may do to them: a yardstick for the distance between two devices.

  tools/rounding_sensitivity.py [--lapidary build/lapidary] [--tokens 280] [PRESET ...]
"""

import argparse
import json
import os
import struct
import subprocess
import tempfile

import numpy as np


def logits(lapidary, checkpoint, ids, path):
    command = [lapidary, "logits", checkpoint, "--device", "cpu", "--ids", ",".join(map(str, ids))]
    subprocess.run([*command, "--output", path], check=True, stderr=subprocess.DEVNULL)
    return np.load(path)


def step_up(path, wanted, random):
    """Makes about half of the values of the wanted bf16 tensors of a safetensors file a step larger."""
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    data = 8 + struct.unpack("<Q", raw[:8])[0]
    changed = 0
    for name, tensor in json.loads(raw[8:data]).items():
        if name == "__metadata__" or tensor["dtype"] != "BF16" or not wanted(name):
            continue
        begin, end = (data + offset for offset in tensor["data_offsets"])
        values = np.frombuffer(raw[begin:end], np.uint16)
        raw[begin:end] = (values + random.integers(0, 2, values.shape).astype(np.uint16)).tobytes()
        changed += 1
    with open(path, "wb") as file:
        file.write(raw)
    return changed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=["tiny-e", "tiny-moe", "tiny-dense"])
    parser.add_argument("--lapidary", default="build/lapidary")
    parser.add_argument("--tokens", type=int, default=280)
    args = parser.parse_args()
    if not os.access(args.lapidary, os.X_OK):
        parser.error(f"there is no program {args.lapidary}: build it with ./lapidary --help, or name it with --lapidary")
    norms = {
        "the first layer's input norm": lambda name: name.endswith("layers.0.input_layernorm.weight"),
        "all layer norms": lambda name: name.endswith("layernorm.weight"),
    }
    last = min(48, args.tokens)
    for preset in args.presets:
        for what, wanted in norms.items():
            random = np.random.default_rng(5)
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = os.path.join(folder, preset)
                output = os.path.join(folder, "logits.npy")
                subprocess.run([args.lapidary, "synth", "--preset", preset, "--out", checkpoint],
                               check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                with open(os.path.join(checkpoint, "config.json")) as file:
                    config = json.load(file)
                ids = random.integers(3, config.get("text_config", config)["vocab_size"], args.tokens)
                before = logits(args.lapidary, checkpoint, ids, output)
                changed = sum(step_up(os.path.join(checkpoint, name), wanted, random)
                              for name in os.listdir(checkpoint) if name.endswith(".safetensors"))
                if changed == 0:
                    raise SystemExit(f"{preset}: no bf16 tensor among {what}")
                after = logits(args.lapidary, checkpoint, ids, output)
            error = np.abs(after - before).max(axis=1) / np.abs(before).max(axis=1)
            print(f"{preset}, {what}: median row error {np.median(error):.4f}, "
                  f"of the last {last} rows {np.median(error[-last:]):.4f}")


if __name__ == "__main__":
    main()
