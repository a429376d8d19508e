#!/usr/bin/env python3
"""What quantised files lose against the checkpoint they were made from: mean KL divergence of the next token's
distribution, and how often the likeliest token is the same.

    build/lapidary convert models/pebble-e --to q4_0 --out q4_0.gguf
    tools/quantisation_loss.py models/pebble-e q4_0.gguf --answers models/pebble-e-answers.jsonl
    # what --fast-math costs on top: the same file with and without
    tools/quantisation_loss.py q4_0.gguf q4_0.gguf --answers models/pebble-e-answers.jsonl --fast-math
    # rounded while loading
    tools/quantisation_loss.py models/pebble-e models/pebble-e --answers models/pebble-e-answers.jsonl --quantization fp8

The tokens are the first --tokens of the recorded answers, one behind the other, after <bos>. Needs numpy.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np

BOS = 2


def logits(binary, model, ids, flags=()):
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "logits.npy"
        subprocess.run([binary, "logits", model, "--device", "cpu", "--ids", ",".join(map(str, ids)), "--output", path, *flags],
                       check=True, stderr=subprocess.DEVNULL)
        return np.load(path).astype(np.float64)


def log_softmax(values):
    shifted = values - values.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", help="directory with the original weights, or the file to compare with")
    parser.add_argument("files", nargs="+", help="GGUF files made from it, or itself")
    parser.add_argument("--fast-math", action="store_true", help="run the files with it, not the checkpoint")
    parser.add_argument("--quantization", help="run the files with it, not the checkpoint")
    parser.add_argument("--answers", type=pathlib.Path, required=True, help="JSON lines with token ids in \"ids\"")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--binary", default="build/lapidary")
    args = parser.parse_args()

    ids = [BOS]
    for line in args.answers.read_text().splitlines():
        ids += json.loads(line)["ids"]
    ids = ids[:args.tokens]
    reference = log_softmax(logits(args.binary, args.checkpoint, ids))
    flags = ["--fast-math"] if args.fast_math else []
    flags += ["--quantization", args.quantization] if args.quantization else []
    print(f"{'file':<40} {'KL':>9} {'top-1':>7}   over {len(ids)} tokens")
    for file in args.files:
        found = log_softmax(logits(args.binary, file, ids, flags))
        divergence = (np.exp(reference) * (reference - found)).sum(-1).mean()
        agreement = (reference.argmax(-1) == found.argmax(-1)).mean()
        print(f"{pathlib.Path(file).name:<40} {divergence:9.5f} {agreement:7.1%}")


if __name__ == "__main__":
    main()
