#!/usr/bin/env python3
"""Writes src/model/compressed_goldens.inc: small modules as the compressed-tensors package of PyPI stores them, and
what it makes of them again.

    pip install compressed-tensors      # and torch
    tools/make_compressed_goldens.py > src/model/compressed_goldens.inc
"""
import importlib.metadata

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

# Name, format, rows and columns, shape of the scales, and what QuantizationArgs takes. Zero points of 8 rows are one
# word, which version 0.20.0 cannot unpack.
CASES = [
    ("PackedGroup", "pack-quantized", (4, 96), (4, 3), dict(num_bits=4, strategy="group", group_size=32)),
    ("PackedZeros", "pack-quantized", (16, 64), (16, 2),
     dict(num_bits=4, strategy="group", group_size=32, symmetric=False)),
    ("PackedRow", "pack-quantized", (4, 64), (4, 1), dict(num_bits=4, strategy="channel")),
    ("PackedBytes", "pack-quantized", (4, 64), (4, 1), dict(num_bits=8, strategy="channel")),
    ("Int8", "int-quantized", (4, 64), (4, 1), dict(num_bits=8, strategy="channel")),
    ("Fp8Row", "float-quantized", (4, 64), (4, 1), dict(num_bits=8, type="float", strategy="channel")),
    ("Fp8Tensor", "float-quantized", (4, 64), (1,), dict(num_bits=8, type="float", strategy="tensor")),
    ("Fp8Block", "float-quantized", (4, 192), (1, 2),
     dict(num_bits=8, type="float", strategy="block", block_structure=[128, 128])),
    ("Nvfp4", "nvfp4-pack-quantized", (4, 64), (4, 4),
     dict(num_bits=4, type="float", strategy="tensor_group", group_size=16)),
]
DTYPES = {torch.int32: "kI32", torch.int64: "kI64", torch.int8: "kI8", torch.bfloat16: "kBF16",
          torch.float32: "kF32", torch.float8_e4m3fn: "kF8E4M3", torch.uint8: "kU8"}


def print_bytes(name, tensor):
    values = tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    print(f"constexpr uint8_t {name}[] = {{")
    for begin in range(0, len(values), 16):
        print("    " + " ".join(f"0x{value:02x}," for value in values[begin:begin + 16]))
    print("};")


def main():
    random = torch.Generator().manual_seed(5)
    print("// Made by tools/make_compressed_goldens.py with compressed-tensors",
          importlib.metadata.version("compressed-tensors"), "of PyPI.")
    listing = []
    for name, format_name, shape, scale_shape, args in CASES:
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args), format=format_name)
        limit = 448 if args.get("type") == "float" else 2**(args["num_bits"] - 1)
        scale = (torch.rand(scale_shape, generator=random) + 0.5) * 0.5 / limit
        state = {"weight": torch.randn(shape, generator=random).mul(0.2).to(torch.bfloat16),
                 "weight_scale": scale.to(torch.bfloat16)}
        if not args.get("symmetric", True):
            state["weight_zero_point"] = torch.randint(-8, 8, scale_shape, generator=random, dtype=torch.int8)
        if format_name.startswith("nvfp4"):
            scale = torch.rand(scale_shape, generator=random) * 60 + 10
            state["weight_scale"] = scale.to(torch.float8_e4m3fn).to(torch.bfloat16)
            state["weight_global_scale"] = torch.tensor([777.7])
        compressor = BaseCompressor.get_value_from_registry(format_name)
        stored = compressor.compress(state, scheme)
        values = compressor.decompress(stored, scheme)["weight"]
        assert values.dtype == torch.bfloat16 and values.shape == shape
        parts = []
        for key, tensor in sorted(stored.items()):
            print_bytes(f"k{name}_{key}", tensor)
            dims = ", ".join(str(dim) for dim in tensor.shape)
            parts.append(f'{{"{key}", DType::{DTYPES[tensor.dtype]}, {{{dims}}}, k{name}_{key}}}')
        print_bytes(f"k{name}_values", values)
        listing.append(f'    {{"{name}", {shape[1]}, {{' + ",\n      ".join(parts) + f"}},\n     k{name}_values}},")
    print("const GoldenModule kGoldenModules[] = {")
    print("\n".join(listing))
    print("};")


if __name__ == "__main__":
    main()
