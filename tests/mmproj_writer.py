"""Writes the towers of a checkpoint directory as an mmproj GGUF file, by the rules of llama.cpp's converter
(conversion/gemma.py): its names, the order of a patch's values, softplus of per_dim_scale, no scalars."""

import json
import struct

import numpy as np

VISION_LAYER = {
    "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm", "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
AUDIO_LAYER = {
    "feed_forward1.pre_layer_norm": "ffn_norm", "feed_forward1.post_layer_norm": "ffn_post_norm",
    "feed_forward2.pre_layer_norm": "ffn_norm_1", "feed_forward2.post_layer_norm": "ffn_post_norm_1",
    "feed_forward1.ffw_layer_1": "ffn_up", "feed_forward1.ffw_layer_2": "ffn_down",
    "feed_forward2.ffw_layer_1": "ffn_up_1", "feed_forward2.ffw_layer_2": "ffn_down_1",
    "norm_pre_attn": "attn_pre_norm", "norm_post_attn": "attn_post_norm", "norm_out": "ln2",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.post": "attn_out", "self_attn.relative_k_proj": "attn_k_rel",
    "self_attn.per_dim_scale": "per_dim_scale", "lconv1d.pre_layer_norm": "conv_norm",
    "lconv1d.conv_norm": "norm_conv", "lconv1d.linear_start": "conv_pw1", "lconv1d.linear_end": "conv_pw2",
    "lconv1d.depthwise_conv1d": "conv_dw",
}
OTHERS = {
    "vision_tower.patch_embedder.input_proj": "v.patch_embd",
    "vision_tower.patch_embedder.position_embedding_table": "v.position_embd",
    "vision_embedder.patch_dense": "v.patch_embd", "vision_embedder.pos_embedding": "v.position_embd",
    "vision_embedder.patch_ln1": "v.patch_norm.1", "vision_embedder.patch_ln2": "v.patch_norm.2",
    "vision_embedder.pos_norm": "v.patch_norm.3",
    "embed_vision.embedding_projection": "mm.input_projection",
    "embed_audio.embedding_projection": "mm.a.input_projection",
    "audio_tower.subsample_conv_projection.layer0.conv": "a.conv1d.0",
    "audio_tower.subsample_conv_projection.layer0.norm": "a.conv1d.0.norm",
    "audio_tower.subsample_conv_projection.layer1.conv": "a.conv1d.1",
    "audio_tower.subsample_conv_projection.layer1.norm": "a.conv1d.1.norm",
    "audio_tower.subsample_conv_projection.input_proj_linear": "a.input_projection",
    "audio_tower.output_proj": "a.pre_encode.out",
}
ENDS = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")


def read_tensors(directory):
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(data[begin:end], np.float32)
            yield name.removeprefix("model."), values.reshape(entry["shape"])


def stored_name(name):
    """The name in the file; None: it is no tower's."""
    name = name.replace(".linear.", ".")
    if name in ("vision_tower.std_bias", "vision_tower.std_scale"):
        return "v." + name.split(".")[1]
    end = next((end for end in ENDS if name.endswith(end)), "")
    name = name.removesuffix(end)
    for prefix, stored, names in (("vision_tower.encoder.layers.", "v", VISION_LAYER),
                                  ("audio_tower.layers.", "a", AUDIO_LAYER)):
        if name.startswith(prefix):
            layer, part = name.removeprefix(prefix).split(".", 1)
            return f"{stored}.blk.{layer}.{names[part]}{end or '.weight'}"
    return OTHERS[name] + (end or ".weight") if name in OTHERS else None


def stored_form(name, values):
    if values.ndim == 0:
        return values.reshape(1)
    if name.endswith("per_dim_scale"):
        return np.logaddexp(0, values)
    if name.endswith("depthwise_conv1d.weight"):
        return values.reshape(values.shape[0], values.shape[2])
    if name == "vision_embedder.pos_embedding":
        return values.transpose(1, 0, 2)
    if name == "vision_tower.patch_embedder.input_proj.weight":
        side = round((values.shape[1] / 3) ** 0.5)
        return values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    if name.startswith(("vision_embedder.patch_dense.weight", "vision_embedder.patch_ln1")):
        side = round((values.shape[-1] / 3) ** 0.5)
        return values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2).reshape(values.shape)
    return values


def metadata(config):
    pairs = {"general.architecture": "clip"}
    vision, audio = config.get("vision_config"), config.get("audio_config")
    is_unified = "Unified" in config["architectures"][0]
    if vision:
        pairs |= {"clip.has_vision_encoder": True, "clip.vision.patch_size": vision.get("patch_size", 16),
                  "clip.vision.projector_type": "gemma4uv" if is_unified else "gemma4v",
                  "clip.vision.projector.scale_factor": vision.get("pooling_kernel_size", 3)}
        if is_unified:
            pairs["clip.vision.embedding_length"] = vision["mm_embed_dim"]
        else:
            pairs |= {"clip.vision.embedding_length": vision["hidden_size"],
                      "clip.vision.feed_forward_length": vision["intermediate_size"],
                      "clip.vision.block_count": vision["num_hidden_layers"],
                      "clip.vision.attention.head_count": vision["num_attention_heads"]}
    if audio:
        pairs |= {"clip.has_audio_encoder": True, "clip.audio.projector_type": "gemma4ua" if is_unified else "gemma4a",
                  "clip.audio.embedding_length": audio.get("hidden_size", audio.get("audio_embed_dim", 0))}
        if not is_unified:
            pairs |= {"clip.audio.block_count": audio["num_hidden_layers"],
                      "clip.audio.attention.head_count": audio["num_attention_heads"]}
    return pairs


def text(words):
    return struct.pack("<Q", len(words.encode())) + words.encode()


def pair(key, value):
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    return text(key) + struct.pack("<I", 8) + text(value)


def write_mmproj(directory, path):
    tensors = [(stored_name(name), np.ascontiguousarray(stored_form(name, values), np.float32))
               for name, values in read_tensors(directory) if stored_name(name)]
    pairs = metadata(json.loads((directory / "config.json").read_text()))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    header += b"".join(pair(key, value) for key, value in pairs.items())
    data = b""
    for name, values in tensors:
        header += text(name) + struct.pack("<I", values.ndim)
        header += b"".join(struct.pack("<Q", extent) for extent in reversed(values.shape))
        header += struct.pack("<IQ", 0, len(data))  # F32
        data += values.tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(header + bytes(-len(header) % 32) + data)


def add_tokens(path, tokens):
    """Gives a GGUF file without a vocabulary one. A longer first token keeps its tensors aligned."""
    data = path.read_bytes()
    (num_pairs,) = struct.unpack("<Q", data[16:24])

    def array(words):
        return (text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(words))
                + b"".join(text(word) for word in words))
    padding = -len(array(tokens)) % 32
    path.write_bytes(data[:16] + struct.pack("<Q", num_pairs + 1)
                     + array([tokens[0] + "-" * padding, *tokens[1:]]) + data[24:])
