#!/usr/bin/env python3
"""Goldens: logits and greedy continuations of small random models, by transformers in float32.

Two stages, because the reference needs PyTorch and the checkpoints need `lapidary synth`:

  tools/make_goldens.py synth --lapidary build/lapidary --checkpoints DIR
  tools/make_goldens.py run --checkpoints DIR --out tests/goldens      (transformers 5.17, torch)
  tools/make_goldens.py drafts --checkpoints DIR --out tests/goldens   (transformers 5.17, torch)
  tools/make_goldens.py bf16 --checkpoints DIR --out tests/goldens/bf16_errors.json       (and a GPU)

A golden is a safetensors file: for each prompt its ids, the logits of every position and 128 greedy
tokens; NAME-drafts holds one round of the assistant behind each prompt. Weights are not stored: the tests make the same checkpoint again from the case's preset or config
(tests/goldens/NAME.config.json) and seed.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = 7
NUM_GREEDY = 128
NUM_DRAFTS = 4

ROPE = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def text_config(**overrides):
    config = {
        "model_type": "gemma4_text",
        "vocab_size": 160,
        "hidden_size": 48,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "global_head_dim": 64,
        "intermediate_size": 80,
        "max_position_embeddings": 2048,
        "sliding_window": 16,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 160,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "rope_parameters": ROPE,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "eos_token_id": 1,
        "bos_token_id": 2,
        "pad_token_id": 0,
    }
    config.update(overrides)
    return {key: value for key, value in config.items() if value is not ...}


def pattern(kinds):
    names = {"s": "sliding_attention", "f": "full_attention"}
    return [names[kind] for kind in kinds]


# One odd thing or several per case; "args" go to `lapidary synth`.
ODD_CASES = {
    # One KV head, no layer_types (pattern of six on seven layers, the last forced to full), no softcap.
    "odd-single-kv": dict(
        config=dict(architectures=["Gemma4ForCausalLM"],
                    **text_config(num_key_value_heads=1, final_logit_softcapping=None)),
        args=["--dtype", "f32"]),
    # A window of three, head dims that fill no vector, hidden size 40, stored in f16.
    "odd-window": dict(
        config=dict(architectures=["Gemma4ForCausalLM"],
                    **text_config(hidden_size=40, head_dim=20, global_head_dim=24, sliding_window=3,
                                  num_hidden_layers=5, layer_types=pattern("sfssf"))),
        args=["--dtype", "f16"]),
    # The multimodal wrapper with poisoned towers, PLE, KV sharing with poisoned K/V, double-wide tail.
    "odd-wrapper": dict(
        config={
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "vision_config": None,
            "audio_config": None,
            "tie_word_embeddings": True,
            "text_config": text_config(hidden_size_per_layer_input=12, num_kv_shared_layers=3,
                                       use_double_wide_mlp=True,
                                       layer_types=pattern("sfsfsfs")),
        },
        args=["--poison-unused"]),
    # per_layer_config, K=V together with KV sharing: sharers fold the donor's key norm.
    "odd-shared-kv-is-v": dict(
        config=dict(architectures=["Gemma4ForCausalLM"],
                    **text_config(global_head_dim=..., attention_k_eq_v=True, num_kv_shared_layers=3,
                                  layer_types=pattern("ssfssff"),
                                  per_layer_config={"02": {"head_dim": 64, "num_key_value_heads": 1},
                                                    "05": {"head_dim": 64, "num_key_value_heads": 1},
                                                    "06": {"head_dim": 64, "num_key_value_heads": 1}})),
        args=[]),
    # Mixture of experts with PLE, all heads KV heads, rope factor, every dim of the full layers turning.
    "odd-moe": dict(
        config=dict(architectures=["Gemma4ForCausalLM"],
                    **text_config(enable_moe_block=True, num_experts=6, top_k_experts=3,
                                  moe_intermediate_size=20, hidden_size_per_layer_input=8,
                                  num_key_value_heads=4, attention_k_eq_v=True,
                                  num_global_key_value_heads=2, layer_types=pattern("sfssfsf"),
                                  rope_parameters={
                                      "full_attention": {"rope_type": "proportional", "rope_theta": 1e5,
                                                         "partial_rotary_factor": 1.0, "factor": 2.0},
                                      "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}})),
        args=["--dtype", "f32"]),
    # The unified family: no PLE and no MoE keys.
    "odd-unified": dict(
        config=dict(architectures=["Gemma4UnifiedForCausalLM"],
                    **text_config(model_type="gemma4_unified_text", hidden_size_per_layer_input=...,
                                  vocab_size_per_layer_input=..., attention_k_eq_v=True,
                                  num_global_key_value_heads=1, num_kv_shared_layers=...)),
        args=[]),
}
PRESET_CASES = {
    "tiny-e": ["--poison-unused"],
    "tiny-moe": [],
    "tiny-dense": ["--dtype", "f32"],
}

# Whose assistants are run, and which of the odd ones' have an ordered head (the presets' say so themselves).
DRAFT_CASES = [*PRESET_CASES, "odd-window", "odd-shared-kv-is-v", "odd-unified"]
ORDERED_CASES = ["odd-shared-kv-is-v"]


def all_cases():
    return list(PRESET_CASES) + list(ODD_CASES)


def synth(options):
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    for name in all_cases():
        out = options.checkpoints / name
        command = [str(options.lapidary), "synth", "--seed", str(SEED), "--out", str(out)]
        if name in PRESET_CASES:
            command += ["--preset", name, "--assistant"] + PRESET_CASES[name]
        else:
            config_path = ROOT / "tests" / "goldens" / f"{name}.config.json"
            config_path.parent.mkdir(parents=True, exist_ok=True)
            config_path.write_text(json.dumps(ODD_CASES[name]["config"], indent=1) + "\n")
            command += ["--config", str(config_path)] + ODD_CASES[name]["args"]
            if name in DRAFT_CASES:
                command += ["--assistant"] + ["--ordered-assistant"] * (name in ORDERED_CASES)
        subprocess.run(command, check=True)


def prompts(vocab_size):
    """Two fixed prompts: shorter and much longer than every window."""
    state = 12345
    ids = []
    for _ in range(150):
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append(3 + (state >> 8) % (vocab_size - 3))
    return {"short": [2] + ids[:4], "long": [2] + ids}


def reference(model, ids):
    import torch

    with torch.no_grad():
        row = torch.tensor([ids])
        logits = model(input_ids=row, use_cache=False).logits[0].float()
        # Greedy by recomputing everything: no cache to get wrong.
        sequence = list(ids)
        smallest_gap = float("inf")
        for _ in range(NUM_GREEDY):
            last = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0, -1].float()
            top = torch.topk(last, 2).values
            smallest_gap = min(smallest_gap, float(top[0] - top[1]))
            sequence.append(int(last.argmax()))
    return logits.contiguous(), sequence[len(ids):], smallest_gap


def run(options):
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(0)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in all_cases():
        directory = options.checkpoints / name
        config = json.loads((directory / "config.json").read_text())
        loader = getattr(transformers, config["architectures"][0])
        model, info = loader.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                             output_loading_info=True)
        model.eval()
        if info["missing_keys"]:
            sys.exit(f"{name}: transformers misses {sorted(info['missing_keys'])[:5]}")
        vocab_size = (config.get("text_config") or config)["vocab_size"]
        tensors = {}
        for prompt_name, ids in prompts(vocab_size).items():
            logits, greedy, gap = reference(model, ids)
            tensors[f"{prompt_name}.ids"] = torch.tensor(ids, dtype=torch.int32)
            tensors[f"{prompt_name}.logits"] = logits
            tensors[f"{prompt_name}.greedy"] = torch.tensor(greedy, dtype=torch.int32)
            print(f"{name} {prompt_name}: max |logit| {logits.abs().max():.3f}, "
                  f"{len(set(greedy))} distinct greedy tokens, smallest gap {gap:.5f}, "
                  f"unexpected {len(info['unexpected_keys'])}")
        args = PRESET_CASES.get(name) or ODD_CASES.get(name, {}).get("args", [])
        save_file(tensors, options.out / f"{name}.safetensors", metadata={
            "command": "tools/make_goldens.py run --checkpoints DIR --out tests/goldens",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "dtype": "float32",
            "seed": str(SEED),
            "synth_args": " ".join(args),
        })


def load(directory):
    import torch
    import transformers

    config = json.loads((directory / "config.json").read_text())
    loader = getattr(transformers, config["architectures"][0])
    model, info = loader.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                         output_loading_info=True)
    if info["missing_keys"]:
        sys.exit(f"{directory}: transformers misses {sorted(info['missing_keys'])[:5]}")
    return model.eval(), config


def draft_round(model, config, assistant, ids):
    """Greedy drafts behind the target's greedy token: its id, theirs, and the assistant's logits of each. All ask
    from position len(ids); full layers see every key of the prompt, sliding layers the last window - 1."""
    import torch
    import transformers

    cache = transformers.DynamicCache()  # made without a config, it keeps every key of every layer
    out = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True, output_hidden_states=True)
    hidden = out.hidden_states[-1][:, -1:]
    token = next_id = int(out.logits[0, -1].argmax())
    kinds = config.get("layer_types") or ["full_attention" if (idx + 1) % 6 == 0 else "sliding_attention"
                                          for idx in range(config["num_hidden_layers"])]
    kinds[-1] = "full_attention"
    owners = kinds[:len(kinds) - (config.get("num_kv_shared_layers") or 0)]
    shared = {}
    for kind in ("sliding_attention", "full_attention"):
        layer = cache.layers[len(owners) - 1 - owners[::-1].index(kind)]
        first = 0 if kind == "full_attention" else max(0, len(ids) - config["sliding_window"] + 1)
        shared[kind] = (layer.keys[:, :, first:], layer.values[:, :, first:])
        assert layer.keys.shape[2] == len(ids)
    drafts, rows = [], []
    for _ in range(NUM_DRAFTS):
        embedded = model.get_input_embeddings()(torch.tensor([[token]]))
        out = assistant(inputs_embeds=torch.cat((embedded, hidden), -1),
                        position_ids=torch.tensor([[len(ids)]]), shared_kv_states=shared)
        hidden, row = out.last_hidden_state, out.logits[0, -1].float()
        token = int(row.argmax())
        drafts.append(token)
        rows.append(row)
    return next_id, drafts, torch.stack(rows)


def drafts(options):
    import torch
    import transformers
    from safetensors.torch import save_file

    options.out.mkdir(parents=True, exist_ok=True)
    for name in DRAFT_CASES:
        model, config = load(options.checkpoints / name)
        assistant, _ = load(options.checkpoints / f"{name}-assistant")
        tensors = {}
        for prompt_name, ids in prompts(config["vocab_size"]).items():
            with torch.no_grad():
                next_id, ids_drafted, logits = draft_round(model, config, assistant, ids)
            tensors[f"{prompt_name}.ids"] = torch.tensor(ids, dtype=torch.int32)
            tensors[f"{prompt_name}.next"] = torch.tensor([next_id], dtype=torch.int32)
            tensors[f"{prompt_name}.draft_ids"] = torch.tensor(ids_drafted, dtype=torch.int32)
            tensors[f"{prompt_name}.draft_logits"] = logits
            gaps = torch.topk(logits, 2).values
            print(f"{name} {prompt_name}: next {next_id}, drafts {ids_drafted}, "
                  f"smallest gap {float((gaps[:, 0] - gaps[:, 1]).min()):.5f}")
        args = PRESET_CASES.get(name) or ODD_CASES.get(name, {}).get("args", [])
        save_file(tensors, options.out / f"{name}-drafts.safetensors", metadata={
            "command": "tools/make_goldens.py drafts --checkpoints DIR --out tests/goldens",
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "dtype": "float32",
            "seed": str(SEED),
            "synth_args": " ".join(args),
        })


def bf16_errors(options):
    """How far the reference's own bf16 run is from its float32 run: the median over rows of
    |row - row32| / |row32|. What a bf16 executor is measured against."""
    import torch
    import transformers

    errors = {}
    for name in PRESET_CASES:
        directory = options.checkpoints / name
        config = json.loads((directory / "config.json").read_text())
        loader = getattr(transformers, config["architectures"][0])
        models = {}
        for dtype in (torch.float32, torch.bfloat16):
            models[dtype] = loader.from_pretrained(directory, dtype=dtype,
                                                   attn_implementation="eager").eval().cuda()
        errors[name] = {}
        for prompt_name, ids in prompts((config.get("text_config") or config)["vocab_size"]).items():
            with torch.no_grad():
                row = torch.tensor([ids]).cuda()
                exact, rounded = (models[dtype](input_ids=row, use_cache=False).logits[0].double()
                                  for dtype in (torch.float32, torch.bfloat16))
            distance = (rounded - exact).norm(dim=1) / exact.norm(dim=1)
            errors[name][prompt_name] = float(distance.median())
    options.out.write_text(json.dumps(errors, indent=1) + "\n")
    print(json.dumps(errors))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    first = stages.add_parser("synth", help="make the checkpoints with `lapidary synth`")
    first.add_argument("--lapidary", type=pathlib.Path, required=True)
    first.add_argument("--checkpoints", type=pathlib.Path, required=True)
    first.set_defaults(action=synth)
    second = stages.add_parser("run", help="run transformers on them")
    second.add_argument("--checkpoints", type=pathlib.Path, required=True)
    second.add_argument("--out", type=pathlib.Path, required=True)
    second.set_defaults(action=run)
    rounds = stages.add_parser("drafts", help="run transformers' assistants on them")
    rounds.add_argument("--checkpoints", type=pathlib.Path, required=True)
    rounds.add_argument("--out", type=pathlib.Path, required=True)
    rounds.set_defaults(action=drafts)
    third = stages.add_parser("bf16", help="measure the reference's own bf16 error")
    third.add_argument("--checkpoints", type=pathlib.Path, required=True)
    third.add_argument("--out", type=pathlib.Path, required=True)
    third.set_defaults(action=bf16_errors)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()
