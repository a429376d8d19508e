#!/usr/bin/env python3
"""The table of docs/models.md: what formats cost the bundled models on the CPU, as lines of Markdown. For each format
the mean KL divergence of the next token, how often the likeliest token is the same (quantisation_loss.py), and how many
of the questions of models/pebble-eval.jsonl are answered rightly.

    tools/quantisation_table.py                       # every format that needs nothing but numpy
    tools/quantisation_table.py fp8-block "--quantization q4_0"
    tools/quantisation_table.py --questions 100       # a part of them

A format is one of make_compressed_checkpoint.py, `convert TYPE`, or options of the program. Needs numpy.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np

from make_compressed_checkpoint import FORMATS, compress
from quantisation_loss import BOS, log_softmax, logits

MODELS = ("pebble-e", "pebble-moe", "pebble-dense")
OPTIONS = ("--quantization q8_0", "--quantization fp8", "--quantization q4_0", "--quantization q4_0 --head-bits 16",
           "--quantization q4_0 --head-bits 4", "--head-bits 8", "--head-bits 4")


def right_answers(binary, model, items, flags, num_questions):
    command = [binary, "eval", model, "--suite", "pebble", "--items", items, "--device", "cpu", "--json", *flags]
    if num_questions:
        command += ["--n", str(num_questions)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(result.stdout)["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("formats", nargs="*", default=["bf16", *FORMATS, *OPTIONS, "convert q4_k"])
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("models"))
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--questions", type=int, default=0, help="0: all of them")
    parser.add_argument("--binary", default="build/lapidary")
    args = parser.parse_args()

    ids, reference = {}, {}
    for model in MODELS:
        lines = (args.models / f"{model}-answers.jsonl").read_text().splitlines()
        ids[model] = [BOS, *(id for line in lines for id in json.loads(line)["ids"])][:args.tokens]
        reference[model] = log_softmax(logits(args.binary, args.models / model, ids[model]))
    for name in args.formats:
        cells = []
        for model in MODELS:
            with tempfile.TemporaryDirectory() as scratch:
                path, flags = args.models / model, []
                if name in FORMATS:
                    path = pathlib.Path(scratch) / model
                    compress(args.models / model, name, path)
                elif name.startswith("convert "):
                    path = pathlib.Path(scratch) / f"{model}.gguf"
                    subprocess.run([args.binary, "convert", args.models / model, "--to", name.split()[1], "--out", path],
                                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                elif name != "bf16":
                    flags = name.split()
                found = log_softmax(logits(args.binary, path, ids[model], flags))
                divergence = (np.exp(reference[model]) * (reference[model] - found)).sum(-1).mean()
                agreement = (reference[model].argmax(-1) == found.argmax(-1)).mean()
                right = right_answers(args.binary, path, args.models / "pebble-eval.jsonl", flags, args.questions)
                cells.append(f"{divergence:.4f} / {agreement:.1%} / {right:.1%}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
