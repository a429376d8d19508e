#!/usr/bin/env python3
"""Goldens of LoRA adapters: files as PEFT writes them, and the logits of PEFT on transformers in float32.

The checkpoints are those of tools/make_goldens.py (its stage `synth`); the adapters are random:

  tools/make_lora_goldens.py --checkpoints DIR --out tests/goldens/lora     (transformers 5.17, peft 0.21.2, torch)

OUT/NAME is the adapter's directory, OUT/NAME.safetensors holds the ids of a prompt and the logits of every position,
with the checkpoint's name in its metadata. Some adapters are written once more in another form (VARIANTS): same deltas,
same logits.
"""

import argparse
import json
import pathlib
import shutil

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from make_goldens import ODD_CASES, PRESET_CASES, SEED, load, prompts

NUM_IDS = 48

# Which modules of which model. "dtype": of the file's tensors.
CASES = {
    # Everything that is a linear layer of a model with per-layer embeddings and shared KV.
    "e-all-linear": dict(model="tiny-e", dtype="bfloat16", r=2, lora_alpha=4, target_modules="all-linear"),
    # Attention with K = V, MLP, router and stacked experts.
    "moe-all": dict(model="tiny-moe", dtype="bfloat16", r=2, lora_alpha=3,
                    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
                                    "router.proj"],
                    target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    # Experts alone, of a model that has per-layer embeddings too.
    "experts": dict(model="odd-moe", dtype="float32", r=3, lora_alpha=6, target_modules=[],
                    target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    # One parameter of experts: its tensors have the name that is gate_up_proj's elsewhere.
    "experts-down": dict(model="odd-moe", dtype="float16", r=2, lora_alpha=2, target_modules=[],
                         target_parameters=["experts.down_proj"]),
    # Ranks and alphas by expression, scaled by the root of the rank; K = V layers.
    "patterns": dict(model="odd-unified", dtype="float32", r=4, lora_alpha=8, use_rslora=True,
                     target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"],
                     rank_pattern={"q_proj": 2, r"layers\.[0-2]\.mlp\.down_proj": 7},
                     alpha_pattern={"k_proj": 3, "^model.layers.1.self_attn.o_proj": 11.5}),
    # Names with language_model, and modules by one expression.
    "wrapper-regex": dict(model="odd-wrapper", dtype="float32", r=2, lora_alpha=2,
                          target_modules=r".*language_model\..*\.(q_proj|v_proj|gate_proj|down_proj|per_layer_input_gate"
                                         r"|per_layer_projection)|.*per_layer_model_projection"),
    # As Unsloth asks for language layers: an expression with word boundaries.
    "unsloth-regex": dict(model="odd-single-kv", dtype="float32", r=3, lora_alpha=3,
                          target_modules=r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|k_proj|v_proj|o_proj"
                                         r"|gate_proj|up_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn"
                                         r"|mlp)\.(?:(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)))"),
    # The largest rank, in one layer.
    "rank-256": dict(model="odd-window", dtype="float16", r=256, lora_alpha=16, layers_to_transform=[3],
                     target_modules=["q_proj", "down_proj"]),
    # KV sharing together with K = V.
    "shared-kv": dict(model="odd-shared-kv-is-v", dtype="float32", r=2, lora_alpha=4, target_modules="all-linear"),
}


def per_expert(tensors, num_experts):
    """Stacked experts as a delta for each: gate and up share what they read."""
    out = {}
    for name, a in tensors.items():
        if ".experts." not in name:
            out[name] = a
        elif name.endswith(".lora_A.weight"):
            b = tensors[name.replace(".lora_A.", ".lora_B.")]
            stem = name.split(".experts.")[0] + ".experts"
            a = a.reshape(num_experts, -1, a.shape[-1])
            b = b.reshape(b.shape[0], -1, num_experts)
            for expert in range(num_experts):
                if ".base_layer." in name:
                    width = b.shape[0] // 2
                    halves = {"gate_proj": b[:width, :, expert], "up_proj": b[width:, :, expert]}
                else:
                    halves = {"down_proj": b[:, :, expert]}
                for module, half in halves.items():
                    out[f"{stem}.{expert}.{module}.lora_A.weight"] = a[expert].clone()
                    out[f"{stem}.{expert}.{module}.lora_B.weight"] = half.contiguous()
    return out


def before_0_19(tensors, num_experts):
    """Stacked experts with in and out exchanged, as PEFT wrote them once."""
    out = {}
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            name_b = name.replace(".lora_A.", ".lora_B.")
            b = tensors[name_b]
            old_a = b.reshape(b.shape[0], -1, num_experts).permute(2, 1, 0)  # [experts, rank, out]
            old_b = a.reshape(num_experts, -1, a.shape[-1]).permute(2, 1, 0)  # [in, rank, experts]
            out[name] = old_a.reshape(-1, b.shape[0]).contiguous()
            out[name_b] = old_b.reshape(a.shape[-1], -1).contiguous()
    return out


def with_unread_kv(tensors, num_experts):
    """Deltas of keys that nobody computes, as files of other trainers have them."""
    out = dict(tensors)
    for layer, rows in ((4, 64), (5, 64)):
        stem = f"base_model.model.model.layers.{layer}.self_attn.k_proj"
        out[f"{stem}.lora_A.weight"] = torch.ones(2, 48)
        out[f"{stem}.lora_B.weight"] = torch.ones(rows, 2)
    return out


VARIANTS = {
    "experts-each": ("experts", per_expert),
    "experts-old": ("experts", before_0_19),
    "shared-kv-unread": ("shared-kv", with_unread_kv),
}


def draw(parameter, generator):
    """Deltas large enough to move every logit, small enough not to saturate the model."""
    with torch.no_grad():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def clean_config(directory):
    """Without paths of the machine that made it."""
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = None
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def make(name, case, options):
    case = dict(case)
    model_name, dtype = case.pop("model"), getattr(torch, case.pop("dtype"))
    model, config = load(options.checkpoints / model_name)
    text_config = config.get("text_config") or config
    ids = prompts(text_config["vocab_size"])["long"][:NUM_IDS]
    row = torch.tensor([ids])
    with torch.no_grad():
        base = model(input_ids=row, use_cache=False).logits[0].float()
    if not case["target_modules"]:
        case["target_modules"] = None
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **case))
    generator = torch.Generator().manual_seed(SEED)
    for parameter_name, parameter in adapted.named_parameters():
        if ".lora_" in parameter_name:
            draw(parameter, generator)
            parameter.data = parameter.data.to(dtype).float()
    adapted.eval()
    directory = options.out / name
    shutil.rmtree(directory, ignore_errors=True)
    adapted.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    clean_config(directory)
    tensors = {key: value.to(dtype).contiguous()
               for key, value in load_file(directory / "adapter_model.safetensors").items()}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        logits = adapted(input_ids=row, use_cache=False).logits[0].float()
    args = PRESET_CASES.get(model_name) or ODD_CASES.get(model_name, {}).get("args", [])
    save_file({"ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.contiguous()},
              options.out / f"{name}.safetensors", metadata={
                  "command": "tools/make_lora_goldens.py --checkpoints DIR --out tests/goldens/lora",
                  "peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__,
                  "dtype": "float32", "model": model_name, "seed": str(SEED), "synth_args": " ".join(args)})
    largest = float(base.abs().max())
    print(f"{name}: {len(tensors) // 2} modules, {sum(t.nbytes for t in tensors.values())} bytes, logits move by "
          f"{float((logits - base).abs().max()) / largest:.3f} of the largest, at position 0 by "
          f"{float((logits - base)[0].abs().max()) / largest:.3f}", flush=True)
    return text_config


def vary(name, options, num_experts):
    source, change = VARIANTS[name]
    directory = options.out / name
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(options.out / source, directory)
    tensors = load_file(directory / "adapter_model.safetensors")
    save_file(change(tensors, num_experts), directory / "adapter_model.safetensors", metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    num_experts = {}
    for name, case in CASES.items():
        num_experts[name] = make(name, case, options).get("num_experts")
    for name, (source, _) in VARIANTS.items():
        vary(name, options, num_experts[source])


if __name__ == "__main__":
    main()
