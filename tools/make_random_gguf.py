#!/usr/bin/env python3
"""Writes a random checkpoint as GGUF, so that llama.cpp can run the very same weights.

    build/lapidary synth --preset e2b --out DIR
    pip install gguf
    tools/make_random_gguf.py DIR OUT.gguf

Matrices stay bf16, vectors become f32, as llama.cpp wants them. Dense Gemma 4 text models only. The
vocabulary is that of DIR/tokenizer.json; its merges are left out, for prompts are sent as ids.
"""
import argparse
import json
import mmap
import pathlib
import struct
import sys

import gguf
import numpy as np

ARCH = "gemma4"

# Hugging Face names to GGUF names, after "model.language_model." or "model.".
GLOBAL_NAMES = {
    "embed_tokens": "token_embd",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "norm": "output_norm",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
}


def gguf_name(name):
    for prefix in ("model.language_model.", "model."):
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    name = name.removesuffix(".weight")
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        if rest in LAYER_NAMES:
            return f"blk.{layer}.{LAYER_NAMES[rest]}.weight"
    elif name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name] + ".weight"
    sys.exit(f"no GGUF name is known for '{name}': only dense Gemma 4 text models can be written")


def tensors(directory):
    """Yields (name, shape, bf16 bits as a mapped uint16 array) of all safetensors files."""
    for path in sorted(directory.glob("*.safetensors")):
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (header_len,) = struct.unpack("<Q", mapped[:8])
        for name, entry in json.loads(mapped[8:8 + header_len]).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "BF16":
                sys.exit(f"{path}: {name} is {entry['dtype']}, not BF16")
            begin, end = entry["data_offsets"]
            yield name, entry["shape"], np.frombuffer(
                mapped, np.uint16, (end - begin) // 2, 8 + header_len + begin)


def add_config(writer, config):
    layers = config["num_hidden_layers"]
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    shared = config["num_kv_shared_layers"]
    width = config["intermediate_size"]
    widths = [width * 2 if config.get("use_double_wide_mlp") and layer >= layers - shared else width
              for layer in range(layers)]
    kv_heads = config["num_key_value_heads"]
    full_kv_heads = config.get("num_global_key_value_heads") or kv_heads
    rope = config["rope_parameters"]

    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(widths)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([kv_heads if is_sliding else full_kv_heads for is_sliding in sliding])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    numbers = {
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.shared_kv_layers": shared,
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
    }
    for key, value in numbers.items():
        writer.add_uint32(f"{ARCH}.{key}", value)
    writer.add_array(f"{ARCH}.attention.sliding_window_pattern", sliding)
    writer.add_float32(f"{ARCH}.final_logit_softcapping", config["final_logit_softcapping"])
    writer.add_float32(f"{ARCH}.rope.freq_base", rope["full_attention"]["rope_theta"])
    writer.add_float32(f"{ARCH}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])


def rope_factors(config):
    """Full layers turn only a part of the dims: llama.cpp divides the others' frequency by 1e30."""
    half = config["global_head_dim"] // 2
    turned = int(half * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return np.array([1.0] * turned + [1e30] * (half - turned), np.float32)


def add_vocabulary(writer, directory):
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    texts = sorted(vocabulary, key=vocabulary.get)
    # Bytes from 0x80 on are plain text here: random weights put them one after the other, and llama.cpp's
    # server fails a request whose answer is not UTF-8.
    kinds = [gguf.TokenType.CONTROL if text in special
             else gguf.TokenType.BYTE if text.startswith("<0x") and len(text) == 6 and text[3] < "8"
             else gguf.TokenType.NORMAL for text in texts]
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(texts)
    writer.add_token_scores([0.0] * len(texts))
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{texts[-2]} {texts[-1]}"])  # there must be one; it never applies
    for name, text in (("bos", "<bos>"), ("eos", "<eos>"), ("unk", "<unk>"), ("pad", "<pad>")):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", vocabulary[text])
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path, help="directory made by `lapidary synth`")
    parser.add_argument("output", type=pathlib.Path, help="GGUF file to write")
    args = parser.parse_args()
    config_path = args.checkpoint / "config.json"
    if not config_path.exists():
        sys.exit(f"{config_path} does not exist: `lapidary synth --preset e2b --out DIR` makes one")
    config = json.loads(config_path.read_text())
    config = config.get("text_config", config)

    writer = gguf.GGUFWriter(args.output, ARCH)
    writer.add_name(args.checkpoint.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_config(writer, config)
    add_vocabulary(writer, args.checkpoint)
    writer.add_tensor("rope_freqs.weight", rope_factors(config))
    for name, shape, bits in tensors(args.checkpoint):
        if len(shape) == 2:
            # The writer wants bytes with the row length in bytes.
            writer.add_tensor(gguf_name(name), bits.view(np.uint8).reshape(shape[0], shape[1] * 2),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


if __name__ == "__main__":
    main()
