#!/usr/bin/env python3
"""Writes src/tensor/block_goldens.inc: random blocks of every block format and what the `gguf` package of
PyPI makes of them.

    pip install gguf
    tools/make_block_goldens.py > src/tensor/block_goldens.inc
"""
import importlib.metadata

import gguf
import numpy as np

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
NUM_BLOCKS = {32: 4, 256: 1}
# Where a block has f16 scales: any bits but infinities and NaN.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}


def print_array(name, kind, values, spelling, per_line):
    print(f"constexpr {kind} {name}[] = {{")
    for begin in range(0, len(values), per_line):
        print("    " + " ".join(spelling(value) + "," for value in values[begin:begin + per_line]))
    print("};")


def main():
    random = np.random.default_rng(1)
    print("// Made by tools/make_block_goldens.py with gguf", importlib.metadata.version("gguf"), "of PyPI.")
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (NUM_BLOCKS[elements], size), np.uint8)
        for begin in HALVES[name]:
            scales = random.normal(0, 1e-2, len(blocks)).astype(np.float16)
            blocks[:, begin:begin + 2] = scales.view(np.uint8).reshape(-1, 2)
        values = gguf.quants.dequantize(blocks, kind).astype(np.float32).reshape(-1)
        print_array(f"k{name}Blocks", "uint8_t", blocks.reshape(-1), lambda value: f"0x{value:02x}", 16)
        print_array(f"k{name}Bits", "uint32_t", values.view(np.uint32), lambda value: f"0x{value:08x}", 8)
    # What it makes blocks from, and the blocks.
    values = random.normal(0, 1, (8, 32)).astype(np.float32)
    values[1] = 0
    values[2] = np.abs(values[2])
    values[3, 7] = -100
    values[4] *= np.float32(1e-4)
    print_array("kPlainBits", "uint32_t", values.reshape(-1).view(np.uint32), lambda value: f"0x{value:08x}", 8)
    for name in ["Q4_0", "Q5_0", "Q8_0"]:
        blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
        print_array(f"kPlainAs{name}", "uint8_t", blocks.reshape(-1), lambda value: f"0x{value:02x}", 16)


if __name__ == "__main__":
    main()
