"""Teaches a trained target to see or to hear: its towers alone learn, the text model stays as it is, to the bit.

    python3 train_towers.py MODEL vision|audio MODEL_DIR OUT_DIR --seconds 200

Writes OUT_DIR/MODEL-vision.safetensors (or -audio) and a .json with the loss curve and the scores of held-out questions.
Batches are drawn on the GPU: a sample is a few small integers and its text.
"""
import argparse
import json
import multiprocessing
import os
import time

import numpy as np
import torch
import torch.nn.functional as fn
from torch.nn.utils import parametrize

import checkpoint
import pictures
import sounds
import towers
from configs import TARGETS
from data import hearing, seeing
from graphs import Step
from model import Pebble
from render import EMPTY
from rng import Rng
from tokenizer import SPECIAL, Encoder
from tower_shapes import TOWERS, AudioConfig, CellConfig, WaveConfig

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = {"vision": seeing, "audio": hearing}
LENGTH = {"vision": 96, "audio": 68}  # tokens of a row
SOFT = {"vision": pictures.SIDE ** 2, "audio": sounds.PIECES}
AROUND = {"vision": ("<|image>", "<image|>"), "audio": ("<|audio>", "<audio|>")}


def rows_of(encoder, kind, large, sample):
    """(ids, weights, first soft token): the media come first, the answer counts."""
    before, behind = AROUND[kind]
    head = encoder.encode("<bos><|turn>user\n") + [SPECIAL[before]]
    ask = encoder.encode(sample["ask"] + "<turn|>\n<|turn>model\n" + (EMPTY if large else ""))
    prompt = head + [0] * SOFT[kind] + [SPECIAL[behind]] + ask
    answer = encoder.encode(sample["answer"] + "<turn|>")
    pad = LENGTH[kind] - len(prompt) - len(answer)
    assert pad >= 0, sample
    weight = [0] * (len(prompt) - 1) + [1] * len(answer) + [0] * (pad + 1)  # of predicting the next token
    return prompt + answer + [0] * pad, weight, len(head)


def content_of(kind, sample):
    """Small integers: of a picture mask and colour of each cell, of a sound its tones and loudness."""
    if kind == "audio":
        return [*sample["tones"], sample["loudness"]]
    grid = np.zeros((2, SOFT[kind]), np.int16)
    for row, column, mask, color in sample["cells"]:
        grid[:, row * pictures.SIDE + column] = mask, color
    return grid.reshape(-1).tolist()


def _part(job):
    kind, large, seed, start, end, held_out, often = job
    encoder = Encoder(os.path.join(HERE, "tokenizer.json"))
    content, ids, weights, tasks = [], [], [], []
    for i in range(start, end):
        sample = DATA[kind].make(Rng(seed, kind, i), held_out, often=often)
        row, weight, _ = rows_of(encoder, kind, large, sample)
        content.append(content_of(kind, sample))
        ids.append(row)
        weights.append(weight)
        tasks.append(DATA[kind].TASKS.index(sample["task"]))
    return (np.array(content, np.int16), np.array(ids, np.int16), np.array(weights, np.uint8), np.array(tasks, np.int16))


def samples(kind, large, seed, count, held_out, workers, often=None):
    size = max(1, -(-count // (4 * workers)))
    jobs = [(kind, large, seed, i, min(i + size, count), held_out, often) for i in range(0, count, size)]
    with multiprocessing.Pool(workers) as pool:
        parts = pool.map(_part, jobs)
    return [torch.from_numpy(np.concatenate(column)) for column in zip(*parts)]


class Media(torch.nn.Module):
    """Small integers -> what a tower takes."""

    def __init__(self, kind, config):
        super().__init__()
        self.kind = kind
        self.mel = towers.LogMel() if isinstance(config, AudioConfig) else None
        if kind == "vision":
            self.register_buffer("masks", torch.from_numpy(pictures.masks()))
            self.register_buffer("colors", torch.tensor(list(pictures.COLORS.values())))
        else:
            self.register_buffer("waves", torch.from_numpy(sounds.waves()).float())

    def forward(self, content):
        if self.kind == "audio":
            loud = content[:, -1:, None].float() / 100
            samples = (self.waves[content[:, :-1].long()] * loud * 32767).round().flatten(1) / 32768
            return samples if self.mel is None else self.mel(samples)
        side, cell = pictures.SIDE, pictures.CELL
        mask, color = content.view(-1, 2, side, side).long().unbind(1)
        figure = self.masks[mask].int()[..., None] * self.colors[color][:, :, :, None, None].int() // 255
        return figure.permute(0, 1, 3, 2, 4, 5).reshape(-1, side * cell, side * cell, 3).float() / 255


class AlikeTones(torch.nn.Module):
    """The projection of samples as V (I + 4 Q), Q onto what changes slowly from tone to tone.

    Tones are orthogonal, so the bare projection is a table with a row for each, and what all of them have to learn (that
    they are beeps) would be learned tone by tone.
    """
    WAVES, AMPLIFY = 16, 4.0

    def __init__(self):
        super().__init__()
        tones = torch.from_numpy(sounds.waves())[1:].float()
        tones = tones / tones.norm(dim=1, keepdim=True).clamp(min=1e-6)
        at = (torch.arange(len(tones)) + 0.5) / len(tones)
        slow = torch.cos(torch.pi * torch.arange(self.WAVES)[:, None] * at)
        basis = torch.linalg.qr((slow @ tones).t())[0]
        self.register_buffer("onto", basis @ basis.t(), persistent=False)

    def forward(self, weight):
        return weight + self.AMPLIFY * weight @ self.onto

    def right_inverse(self, weight):
        return weight - self.AMPLIFY / (1 + self.AMPLIFY) * weight @ self.onto


class Adam:
    """With the schedule that graphs.Step asks for; the end is set by the clock."""

    def __init__(self, net, lr, device):
        self.rate, self.full, self.left = torch.zeros((), device=device), lr, 1.0
        cuda = device == "cuda"
        self.adam = torch.optim.Adam(net.parameters(), lr=self.rate if cuda else lr, betas=(0.9, 0.98), fused=cuda,
                                     capturable=cuda)
        if cuda:
            self.adam.param_groups[0]["lr"] = self.rate

    def scale(self, step):
        return min(1.0, (step + 1) / 200, self.left / 0.5)  # warm-up, flat, the last half of the time down to zero

    def set_scale(self, scale):
        self.rate.fill_(self.full * scale)
        if not self.adam.param_groups[0]["capturable"]:
            self.adam.param_groups[0]["lr"] = self.full * scale

    def update(self):
        self.adam.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TOWERS))
    parser.add_argument("kind", choices=["vision", "audio"])
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--start", help="weights to go on from")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="no CUDA graph")
    parser.add_argument("--report", type=int, default=500)
    parser.add_argument("--often", nargs="+", metavar="TASK=WEIGHT", help="how often a task comes, instead of the data's own")
    args, started = parser.parse_args(), time.time()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    text, kind = TARGETS[args.model], args.kind
    shape = TOWERS[args.model][kind == "audio"]
    net = Pebble(text, torch.bfloat16 if args.device == "cuda" else torch.float32).to(args.device)
    checkpoint.read(net, args.folder)
    net.requires_grad_(False)
    tower, media = towers.make(shape, text.hidden).to(args.device), Media(kind, shape).to(args.device)
    if args.start:
        from safetensors.torch import load_file
        tower.load_state_dict({name.removeprefix("model."): value.float() for name, value in load_file(args.start).items()})
    if isinstance(shape, WaveConfig):
        parametrize.register_parametrization(tower.embed_audio.embedding_projection, "weight", AlikeTones().to(args.device))
    both_ways = kind == "vision" and isinstance(shape, CellConfig)
    first = rows_of(Encoder(os.path.join(HERE, "tokenizer.json")), kind, text.large, {"ask": "", "answer": ""})[2]
    often = [(task, int(weight)) for task, weight in (pair.split("=") for pair in args.often)] if args.often else None
    train = [x.to(args.device) for x in samples(kind, text.large, args.seed, args.samples, False, args.workers, often)]
    held_out = [x.to(args.device) for x in samples(kind, text.large, "eval", 1000, True, args.workers)]

    behind = first + SOFT[kind]  # the first token after the media

    def logits(content, ids):
        soft = tower(media(content))
        return net.logits(net.seeing(ids, (first, soft), both_ways)[:, behind:-1])

    def losses(batch):
        content, ids, weight = batch["rows"]
        wanted, weight = ids[:, behind + 1:].flatten(), weight[:, behind:-1].flatten()
        each = fn.cross_entropy(logits(content, ids).flatten(0, 1), wanted, reduction="none")
        loss = (each * weight).sum() / weight.sum()
        loss.backward()
        return {"loss": loss.detach()}

    @torch.no_grad()
    def score():
        """Share of right answers of each task; right: every token is the first choice after the ones before."""
        right = []
        for part in zip(*(x.split(100) for x in held_out[:3])):
            content, ids, weight = part[0], part[1].long(), part[2].bool()
            best = logits(content, ids).argmax(-1)
            right.append(((best == ids[:, behind + 1:]) | ~weight[:, behind:-1]).all(1))
        right = torch.cat(right)
        return {task: round(float(right[held_out[3] == i].float().mean()), 3) for i, task in enumerate(DATA[kind].TASKS)}

    optimizer = Adam(tower, args.lr, args.device)
    step_of = Step(tower, optimizer, losses, args.device == "cuda" and not args.eager)
    log = {"arguments": vars(args), "parameters": sum(p.numel() for p in tower.parameters()), "curve": []}
    print(f"{args.model} {kind}: {log['parameters']} parameters, {time.time() - started:.0f} s to make the samples", flush=True)
    step, total, begin = 0, 0.0, time.time()
    end = started + args.seconds
    while time.time() < end:
        optimizer.left = max(0.0, (end - time.time()) / (end - begin))
        rows = torch.randint(len(train[0]), (args.batch,), device=args.device)
        batch = train[0][rows], train[1][rows].long(), train[2][rows].float()
        total = total + step_of({"rows": batch}, step)["loss"]
        step += 1
        if step % 50 == 0:
            float(total)  # keeps the clock honest: replays are queued
        if step % args.report == 0:
            row = {"step": step, "loss": round(float(total) / args.report, 4), "seconds": round(time.time() - started, 1)}
            if step % (4 * args.report) == 0:
                row.update(score())
            log["curve"].append(row)
            print(row, flush=True)
            total = 0.0
    if isinstance(shape, WaveConfig):
        parametrize.remove_parametrizations(tower.embed_audio.embedding_projection, "weight")
    checkpoint.round_weights(tower)
    log.update(steps=step, scores=score(), seconds=round(time.time() - started, 1))
    print(args.model, kind, step, log["scores"], flush=True)
    from safetensors.torch import save_file
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, f"{args.model}-{kind}")
    save_file({f"model.{name}": value for name, value in checkpoint.tensors(tower).items()}, path + ".safetensors")
    with open(path + ".json", "w") as file:
        json.dump(log, file, indent=1)


if __name__ == "__main__":
    main()
