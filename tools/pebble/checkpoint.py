"""Checkpoints in parts of at most 15 MiB, and the final files in transformers' layout."""
import glob
import io
import json
import os
import shutil

import torch

PART = 15 << 20
HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = os.path.join(HERE, "..", "..", "resources", "chat_templates")


def save(folder, name, state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    for i in range(0, len(data), PART):
        with open(os.path.join(folder, f"{name}.part{i // PART}"), "wb") as file:
            file.write(data[i:i + PART])


def load(folder, name, device):
    """The saved state, or None where there is none."""
    paths = sorted(glob.glob(os.path.join(folder, f"{name}.part*")))
    if not paths:
        return None
    data = b"".join(open(path, "rb").read() for path in paths)
    return torch.load(io.BytesIO(data), map_location=device, weights_only=False)


def _json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def tensors(net):
    """The weights as they are shipped: rounded to bf16 (the token ordering stays int64)."""
    return {name: value.detach().cpu().contiguous() if value.dtype == torch.int64 else
            value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in net.state_dict().items()}


def round_weights(net):
    """Leaves in `net` exactly what the file holds."""
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p.to(torch.bfloat16).float())


def export(net, config, folder, template=None):
    """model.safetensors and config.json; with a template (a target's), the tokenizer and generation files too."""
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    save_file(tensors(net), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    _json(folder, "config.json", config)
    if template:
        _json(folder, "generation_config.json", {
            "bos_token_id": 2, "pad_token_id": 0, "eos_token_id": [1, 106, 50], "do_sample": True, "temperature": 1.0,
            "top_k": 64, "top_p": 0.95})
        _json(folder, "tokenizer_config.json", {
            "tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
            "unk_token": "<unk>", "mask_token": "<mask>", "add_bos_token": False, "add_eos_token": False,
            "clean_up_tokenization_spaces": False, "model_max_length": 8192})
        shutil.copy(os.path.join(HERE, "tokenizer.json"), os.path.join(folder, "tokenizer.json"))
        shutil.copy(os.path.join(TEMPLATES, template), os.path.join(folder, "chat_template.jinja"))


def text_tensors(folder):
    """{name without "model.": tensor} of the text model, whether or not the file has towers beside it."""
    from safetensors.torch import load_file
    found = {name.removeprefix("model."): value
             for name, value in load_file(os.path.join(folder, "model.safetensors")).items()}
    inner = "language_model."
    if not any(name.startswith(inner) for name in found):
        return found
    return {name.removeprefix(inner): value for name, value in found.items() if name.startswith(inner)}


def read(net, folder):
    """A target's weights."""
    net.load_state_dict({f"model.{name}": value.float() for name, value in text_tensors(folder).items()})


def read_kernels(path):
    """Compiled kernels of an earlier run on the same kind of machine."""
    if path and os.path.exists(path):
        with open(path, "rb") as file:
            torch.compiler.load_cache_artifacts(file.read())


def write_kernels(path):
    artifacts = torch.compiler.save_cache_artifacts() if path else None
    if artifacts is not None:
        with open(path, "wb") as file:
            file.write(artifacts[0])
