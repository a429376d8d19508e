"""LoRA adapters with made-up values, as PEFT writes them. Needs nothing but Python."""

import json
import pathlib
import random
import struct


def write_safetensors(path, tensors):
    """tensors: name -> (shape, floats), written as F32."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], raw[8 + length:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def write_adapter(directory, model, seed, rank=2, size=0.3):
    """Deltas of every layer's MLP and queries, of a model's directory. Returns the adapter's."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    config = config.get("text_config", config)
    hidden, draw = config["hidden_size"], random.Random(seed)
    tensors = {}

    def add(module, rows, columns):
        stem = f"base_model.model.model.layers.{module}"
        for half, shape in (("lora_A", (rank, columns)), ("lora_B", (rows, rank))):
            tensors[f"{stem}.{half}.weight"] = (shape, [draw.uniform(-size, size) for _ in range(shape[0] * shape[1])])

    shared = config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
    for layer, kind in enumerate(config["layer_types"]):
        width = config["intermediate_size"] * (2 if config.get("use_double_wide_mlp") and layer >= shared else 1)
        head_dim = config["head_dim"] if kind == "sliding_attention" else config["global_head_dim"]
        add(f"{layer}.mlp.up_proj", width, hidden)
        add(f"{layer}.mlp.down_proj", hidden, width)
        add(f"{layer}.self_attn.q_proj", config["num_attention_heads"] * head_dim, hidden)
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["up_proj", "down_proj", "q_proj"]}))
    write_safetensors(directory / "adapter_model.safetensors", tensors)
    return directory
