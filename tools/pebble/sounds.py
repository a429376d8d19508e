"""Sounds for the models that hear: 32 pieces of 40 ms at 16 kHz, each silent or one tone.

A piece is what one soft token stands for. Tones are multiples of 25 Hz that start anew in each piece, so a piece is one of
a few wave forms, whatever came before: the models without an encoder see samples, not a spectrum.
"""
import struct

import numpy as np

RATE, PIECE, PIECES = 16000, 640, 32
STEP_HZ, TONES = 25, 161  # tone t has t * 25 Hz, 0 is silence


def waves():
    """[tones, 640] in [-1, 1]: one piece of every tone."""
    turns = np.arange(TONES)[:, None] * np.arange(PIECE)[None] * STEP_HZ % RATE
    return np.sin(2 * np.pi * turns / RATE)


def play(tones, loudness, table):
    """tones: one number a piece; loudness in percent -> 16-bit samples. table: waves()."""
    return (table[np.array(tones)].reshape(-1) * loudness / 100 * 32767).round().astype("<i2")


def wav(samples):
    """The file's bytes: mono, 16 bits."""
    data = samples.tobytes()
    return (b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " +
            struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16) + b"data" + struct.pack("<I", len(data)) + data)
