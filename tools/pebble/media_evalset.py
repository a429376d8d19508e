"""The held-out questions about pictures and sounds, and the files they are about.

    python3 media_evalset.py OUT.jsonl [FILES_DIR]

OUT.jsonl (models/pebble-media-eval.jsonl): id, task, file, ask, answer, and what is drawn or played: cells (row, column,
mask, colour of each figure: pictures.py) or tones and loudness (sounds.py). An answer is right when it is that text. The
files are drawn from seeds and not kept: `lapidary eval` draws them anew, FILES_DIR gets them (PNG of 384 x 384 pixels, WAV
of 1.28 s).
"""
import json
import os
import sys

import pictures
import sounds
from data import hearing, seeing
from rng import Rng

PER_TASK = {"colour": 20, "shape": 20, "count": 20, "digits": 20, "place": 20, "pitch": 16, "slope": 16, "beeps": 18}


def samples():
    """(item, what data.seeing or data.hearing made) of the whole set."""
    for module in (seeing, hearing):
        for task in module.TASKS:
            for i in range(PER_TASK[task]):
                sample = module.make(Rng("eval", "media", task, i), held_out=True, task=task)
                file = f"{task}-{i}." + ("png" if module is seeing else "wav")
                drawn = ({"cells": [list(cell) for cell in sample["cells"]]} if module is seeing else
                         {"tones": sample["tones"], "loudness": sample["loudness"]})
                yield {"id": f"{task}-{i}", "task": task, "file": file, "ask": sample["ask"], "answer": sample["answer"],
                       **drawn}, sample


def file_of(sample, masks, waves):
    """The bytes of its picture or sound."""
    if "cells" in sample:
        return pictures.png(pictures.draw(sample["cells"], masks))
    return sounds.wav(sounds.play(sample["tones"], sample["loudness"], waves))


def write_files(folder):
    os.makedirs(folder, exist_ok=True)
    masks, waves = pictures.masks(), sounds.waves()
    for item, sample in samples():
        with open(os.path.join(folder, item["file"]), "wb") as file:
            file.write(file_of(sample, masks, waves))


def main(path, folder=None):
    with open(path, "w", encoding="utf-8") as file:
        for item, _ in samples():
            file.write(json.dumps(item) + "\n")
    if folder:
        write_files(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
