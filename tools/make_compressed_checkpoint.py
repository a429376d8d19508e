#!/usr/bin/env python3
"""Writes a bf16 checkpoint directory as compressed-tensors or modelopt would store it, without either: rounded to
nearest, nothing calibrated. For measurements (tools/quantisation_table.py) and tests.

    tools/make_compressed_checkpoint.py models/pebble-e fp8-block /tmp/pebble-e-fp8-block

Matrices of attention, MLP, experts (a module for each) and per-layer inputs take the format; rows that are no whole
groups, embeddings, router and towers stay in bf16. Needs numpy.
"""
import argparse
import json
import pathlib
import re
import shutil

import numpy as np

GROUP = 32
SQUARE = 128
FLOAT4_GROUP = 16
LINEAR = re.compile(r"\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.\w+_proj|per_layer_input_gate|per_layer_projection)"
                    r"\.weight$")
EXPERTS = re.compile(r"\.layers\.\d+\.experts\.(gate_up_proj|down_proj)$")
NAMES = {"<f4": "F32", "<i4": "I32", "<i8": "I64", "|i1": "I8", "|u1": "U8"}


class Bits:
    """An array whose type numpy does not have."""

    def __init__(self, name, values):
        self.name, self.values = name, values


def magnitudes(exponent_bits, fraction_bits, bias):
    codes = np.arange(2**(exponent_bits + fraction_bits))
    exponent, fraction = codes >> fraction_bits, codes & (2**fraction_bits - 1)
    normal = (2**fraction_bits + fraction) * 2.0**(exponent - bias - fraction_bits)
    return np.where(exponent == 0, fraction * 2.0**(1 - bias - fraction_bits), normal)


E4M3 = magnitudes(4, 3, 7)[:127]  # the last code is no number
E2M1 = magnitudes(2, 1, 1)


def nearest(values, table):
    """Codes of the nearest magnitudes, of two as near the even one; the sign above them."""
    size = np.minimum(np.abs(values), table[-1])
    above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    low, high = table[above - 1], table[above]
    takes_high = (size - low > high - size) | ((size - low == high - size) & (above % 2 == 0))
    codes = np.where(takes_high, above, above - 1)
    return codes.astype(np.uint8), np.signbit(values)


def to_e4m3(values):
    codes, sign = nearest(values, E4M3)
    return codes | sign.astype(np.uint8) << 7


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16_scale(values):
    """A scale as it is stored, and what it is then."""
    bits = to_bf16(np.maximum(values, 1e-9))
    return Bits("BF16", bits), from_bf16(bits)


def float8(weight, largest, spread):
    """`largest` magnitudes by group, and how a table of groups becomes one of weights."""
    stored, scale = bf16_scale(largest / E4M3[-1])
    return {"weight": Bits("F8_E4M3", to_e4m3(weight / spread(scale))), "weight_scale": stored}


def float8_tensor(weight):
    return float8(weight, np.abs(weight).max().reshape(1), lambda scale: scale)


def float8_channel(weight):
    return float8(weight, np.abs(weight).max(1, keepdims=True), lambda scale: scale)


def float8_block(weight):
    rows, cols = weight.shape
    row_starts, col_starts = np.arange(0, rows, SQUARE), np.arange(0, cols, SQUARE)
    largest = np.maximum.reduceat(np.maximum.reduceat(np.abs(weight), row_starts, 0), col_starts, 1)
    return float8(weight, largest,
                  lambda scale: scale.repeat(SQUARE, 0)[:rows].repeat(SQUARE, 1)[:, :cols])


def float8_modelopt(weight):
    scale = np.float32(np.abs(weight).max() / E4M3[-1])
    return {"weight": Bits("F8_E4M3", to_e4m3(weight / scale)), "weight_scale": np.float32(scale),
            "input_scale": np.float32(1)}


def packed(codes, bits):
    """Unsigned codes in words of 32 bits along the last dim, the first one lowest."""
    per_word = 32 // bits
    codes = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, per_word)
    return (codes << (np.arange(per_word, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32).view(np.int32)


def integers(weight, bits, group, has_zeros=False):
    rows, cols = weight.shape
    group = group or cols
    if cols % group or cols % GROUP or (has_zeros and rows % 8):
        return None
    runs = weight.reshape(rows, -1, group)
    top = 2**bits - 1
    stored = {"weight_shape": np.array([rows, cols], np.int64)}
    if has_zeros:
        low, high = np.minimum(runs.min(-1), 0), np.maximum(runs.max(-1), 0)
        stored["weight_scale"], scale = bf16_scale((high - low) / top)
        zero = np.clip(np.rint(-low / scale), 0, top)
        stored["weight_zero_point"] = np.ascontiguousarray(packed(zero.T, bits).T)
    else:
        stored["weight_scale"], scale = bf16_scale(np.abs(runs).max(-1) / (top / 2))
        zero = np.full(scale.shape, 2**(bits - 1))
    codes = np.clip(np.rint(runs / scale[..., None]) + zero[..., None], 0, top)
    return {"weight_packed": packed(codes.reshape(rows, cols), bits), **stored}


def float4(weight, is_modelopt):
    rows, cols = weight.shape
    if cols % FLOAT4_GROUP:
        return None
    runs = weight.reshape(rows, -1, FLOAT4_GROUP)
    unit = np.float32(max(np.abs(weight).max(), 1e-9) / (E4M3[-1] * E2M1[-1]))
    scale_codes = to_e4m3(np.maximum(np.abs(runs).max(-1) / E2M1[-1] / unit, E4M3[1]))
    scale = E4M3[scale_codes] * unit
    codes, sign = nearest(runs / scale[..., None], E2M1)
    codes = (codes | sign.astype(np.uint8) << 3).reshape(rows, -1, 2)
    both = codes[..., 0] | codes[..., 1] << 4
    scales = Bits("F8_E4M3", scale_codes)
    if is_modelopt:
        return {"weight": both, "weight_scale": scales, "weight_scale_2": unit, "input_scale": np.float32(1)}
    return {"weight_packed": both, "weight_scale": scales, "weight_global_scale": np.array([1 / unit], np.float32)}


FORMATS = {
    "fp8-tensor": float8_tensor,
    "fp8-channel": float8_channel,
    "fp8-block": float8_block,
    "fp8-modelopt": float8_modelopt,
    "w4a16": lambda weight: integers(weight, 4, GROUP),
    "w4a16-g128": lambda weight: integers(weight, 4, 128),
    "w4a16-zeros": lambda weight: integers(weight, 4, GROUP, has_zeros=True),
    "w8a16": lambda weight: integers(weight, 8, None),
    "nvfp4": lambda weight: float4(weight, is_modelopt=False),
    "nvfp4-modelopt": lambda weight: float4(weight, is_modelopt=True),
}


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data, np.uint8, end - begin, 8 + size + begin)
        yield name, entry["dtype"], entry["shape"], raw


def write_safetensors(path, tensors):
    header, offset = {}, 0
    blobs = []
    for name, (dtype, shape, blob) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(blobs)


def modules_of(name, weight):
    """Modules of a tensor with their matrices: of fused experts, one by one."""
    if weight.ndim == 2:
        yield name.removesuffix(".weight"), weight
        return
    prefix, kind = name.rsplit(".", 1)
    for expert, matrix in enumerate(weight):
        if kind == "down_proj":
            yield f"{prefix}.{expert}.down_proj", matrix
            continue
        gate, up = np.split(matrix, 2)
        yield f"{prefix}.{expert}.gate_proj", gate
        yield f"{prefix}.{expert}.up_proj", up


def compress(source, format_name, target):
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target)
    config = json.loads((source / "config.json").read_text())
    method = "modelopt" if format_name.endswith("modelopt") else "compressed-tensors"
    config["quantization_config"] = {"quant_method": method}
    if method == "modelopt":
        config["quantization_config"]["quant_algo"] = "FP8" if format_name.startswith("fp8") else "NVFP4"
    (target / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {}
    for name, dtype, shape, raw in read_safetensors(source / "model.safetensors"):
        if dtype != "BF16" or not (LINEAR.search(name) or EXPERTS.search(name)):
            tensors[name] = (dtype, shape, raw.tobytes())
            continue
        weight = from_bf16(raw.view(np.uint16)).reshape(shape)
        stored = [(module, matrix, FORMATS[format_name](matrix)) for module, matrix in modules_of(name, weight)]
        if any(parts is None for _, _, parts in stored):
            tensors[name] = (dtype, shape, raw.tobytes())
            continue
        for module, _, parts in stored:
            for part, values in parts.items():
                array = values.values if isinstance(values, Bits) else np.asarray(values)
                type_name = values.name if isinstance(values, Bits) else NAMES[array.dtype.str]
                tensors[f"{module}.{part}"] = (type_name, array.shape, np.ascontiguousarray(array).tobytes())
    write_safetensors(target / "model.safetensors", tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, help="checkpoint directory with one model.safetensors in bf16")
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("target", type=pathlib.Path, help="directory to write; must not exist")
    args = parser.parse_args()
    compress(args.source, args.format, args.target)


if __name__ == "__main__":
    main()
