"""A saved target on the CPU with numpy alone: slow, short, and a second opinion on model.py.

    python3 chat.py MODEL MODEL_DIR ["a question"] [--think]        without a question: a conversation
    python3 chat.py MODEL MODEL_DIR --check ANSWERS.jsonl [--every N] [--eval-set FILE]

--check repeats every N-th recorded answer and says how many came out the same.
"""
import argparse
import json
import os
import struct

import numpy as np

from configs import S, TARGETS
from evalset import load, talk_of
from render import prompt
from tokenizer import Encoder

HERE = os.path.dirname(os.path.abspath(__file__))
STOPS = (1, 106, 50)


def read(path):
    """{name: float32 array} of a bf16 safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            bits = np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16
            out[name.replace("language_model.", "")] = bits.view(np.float32).reshape(entry["shape"])
    return out


def normed(x, weight=1.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def rope(x, kind, pos):
    """x [T, heads, d]"""
    half = x.shape[-1] // 2
    pair = np.arange(half)
    rate = 10000.0 ** (-pair / half) if kind == S else 1000000.0 ** (-pair / half) * (pair < half // 4)
    angle = (pos[:, None] * rate)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), -1).astype(np.float32)


class Net:
    def __init__(self, model, folder):
        self.config, self.weights = TARGETS[model], read(os.path.join(folder, "model.safetensors"))
        self.clear()

    def clear(self):
        self.keys, self.values, self.length = {}, {}, 0

    def _attend(self, i, u, pos):
        c, kind, d, count = self.config, self.config.layers[i], self.config.dim(i), len(u)

        def part(name):
            return self.weights[f"model.layers.{i}.self_attn.{name}.weight"]
        q = rope(normed((u @ part("q_proj").T).reshape(count, c.heads, d), part("q_norm")), kind, pos)
        donor = i if i < c.first_shared else c.donor(kind)
        if donor == i:
            k = (u @ part("k_proj").T).reshape(count, c.kv(i), d)
            v = k if c.k_eq_v and kind != S else (u @ part("v_proj").T).reshape(count, c.kv(i), d)
            for held, new in ((self.keys, rope(normed(k, part("k_norm")), kind, pos)), (self.values, normed(v))):
                held[i] = np.concatenate((held[i], new)) if i in held else new
        k, v = self.keys[donor], self.values[donor]
        at = np.arange(len(k))
        seen = at[None] <= pos[:, None]
        if kind == S:
            seen &= at[None] > pos[:, None] - c.window
        out = []
        for head in range(c.heads):
            group = head * k.shape[1] // c.heads
            score = np.where(seen, q[:, head] @ k[:, group].T, -1e30)
            score = np.exp(score - score.max(-1, keepdims=True))
            out.append(score / score.sum(-1, keepdims=True) @ v[:, group])
        return np.concatenate(out, -1) @ part("o_proj").T

    def _experts(self, i, h):
        """The routed branch of layer i, row by row with the chosen experts only."""
        def part(name):
            return self.weights[f"model.layers.{i}.{name}"]
        c, x = self.config, normed(h, part("pre_feedforward_layernorm_2.weight"))
        score = (normed(h, part("router.scale")) * c.hidden ** -0.5) @ part("router.proj.weight").T
        odds, out = np.exp(score - score.max(-1, keepdims=True)), np.zeros_like(h)
        for row, chosen in enumerate(np.argsort(-odds, -1, kind="stable")[:, :c.top_k]):
            for e in chosen:
                gate, up = np.split(part("experts.gate_up_proj")[e] @ x[row], 2)
                share = odds[row, e] / odds[row, chosen].sum() * part("router.per_expert_scale")[e]
                out[row] += share * (part("experts.down_proj")[e] @ (gelu(gate) * up))
        return out

    def run(self, ids):
        """Appends the tokens to the cache; the logits after the last one."""
        c, w, count = self.config, self.weights, len(ids)
        pos, self.length = np.arange(self.length, self.length + count), self.length + count
        table = w["model.embed_tokens.weight"]
        h = table[ids] * np.float32(c.hidden ** 0.5)
        if c.ple:
            shape = (count, len(c.layers), c.ple)
            token = (w["model.embed_tokens_per_layer.weight"][ids] * c.ple ** 0.5).reshape(shape)
            context = (h @ w["model.per_layer_model_projection.weight"].T * c.hidden ** -0.5).reshape(shape)
            ple = (normed(context, w["model.per_layer_projection_norm.weight"]) + token) * 2 ** -0.5
        for i in range(len(c.layers)):
            def part(name):
                return w[f"model.layers.{i}.{name}.weight"]
            h = h + normed(self._attend(i, normed(h, part("input_layernorm")), pos), part("post_attention_layernorm"))
            n = normed(h, part("pre_feedforward_layernorm"))
            f = (gelu(n @ part("mlp.gate_proj").T) * (n @ part("mlp.up_proj").T)) @ part("mlp.down_proj").T
            if c.experts:
                f = normed(f, part("post_feedforward_layernorm_1")) + normed(
                    self._experts(i, h), part("post_feedforward_layernorm_2"))
            h = h + normed(f, part("post_feedforward_layernorm"))
            if c.ple:
                gated = gelu(h @ part("per_layer_input_gate").T) * ple[:, i]
                h = h + normed(gated @ part("per_layer_projection").T, part("post_per_layer_input_norm"))
            h = h * w[f"model.layers.{i}.layer_scalar"]
        y = normed(h[-1], w["model.norm.weight"])
        return c.softcap * np.tanh(y @ table.T / c.softcap)

    def greedy(self, ids, new=160):
        self.clear()
        logits, out = self.run(np.array(ids)), []
        while len(out) < new:
            out.append(int(logits.argmax()))
            if out[-1] in STOPS:
                break
            logits = self.run(np.array(out[-1:]))
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TARGETS))
    parser.add_argument("folder")
    parser.add_argument("question", nargs="?")
    parser.add_argument("--think", action="store_true")
    parser.add_argument("--check")
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--eval-set", default=os.path.join(HERE, "..", "..", "models", "pebble-eval.jsonl"))
    args = parser.parse_args()
    net, encoder = Net(args.model, args.folder), Encoder(os.path.join(args.folder, "tokenizer.json"))
    if args.check:
        pairs = list(zip(load(args.eval_set), load(args.check)))[::args.every]
        same = sum(net.greedy(encoder.encode(prompt(talk_of(line), net.config.large))) == answer["ids"] for line, answer in pairs)
        print(f"{same} of {len(pairs)} answers the same")
        return
    messages = []
    while True:
        messages.append({"role": "user", "content": args.question or input("> ")})
        talk = {"messages": messages + [{"role": "assistant", "content": ""}], "thinking": args.think}
        text = encoder.decode(net.greedy(encoder.encode(prompt(talk, net.config.large))))
        print(text.removesuffix("<turn|>"))
        if args.question:
            return
        messages.append({"role": "assistant", "content": text.removesuffix("<turn|>").rpartition("<channel|>")[2]})


if __name__ == "__main__":
    main()
