"""Trains one target on one GPU.

    python3 train.py MODEL OUT_DIR [--steps N] [--minutes M] [--resume DIR] ...

A run is a function of its arguments: batch `step` depends on (seed, step) alone. Without --steps it takes as many steps as
fit into --minutes, and the log says how many. With both it stops in time and leaves OUT_DIR/train.part*; the same command
with --resume goes on from there. It ends with OUT_DIR/MODEL in transformers' layout, rounded to bf16.
"""
import argparse
import json
import os
import time

import torch
import torch.nn.functional as fn

import checkpoint
from configs import TARGETS
from evalset import load
from feeder import Feeder
from generate import score
from graphs import Step
from model import Pebble
from optim import Optimizer
from packing import Batches
from tokenizer import Encoder

HERE = os.path.dirname(os.path.abspath(__file__))
ENDLESS = 1 << 30


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TARGETS))
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit into --minutes")
    parser.add_argument("--minutes", type=float, default=0.0, help="0: 8 without --steps, else no limit")
    parser.add_argument("--resume", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", type=int, default=96, help="rows of 512 tokens per step")
    parser.add_argument("--long", type=int, default=4, help="rows of 4096 tokens per step")
    parser.add_argument("--long-every", type=int, default=3, help="long rows in every n-th step only")
    parser.add_argument("--long-weight", type=float, default=4.0)
    parser.add_argument("--ramp", type=int, default=800, help="steps until the recall tasks reach full length")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--cool", type=float, default=0.4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--eval-every", type=int, default=2000)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--graph", action="store_true", help="capture the step as a CUDA graph")
    parser.add_argument("--compile-cache", default="", help="file of compiled kernels: read where present, then written")
    parser.add_argument("--eval-set", default=os.path.join(HERE, "..", "..", "models", "pebble-eval.jsonl"))
    return with_minutes(parser.parse_args(), 8.0)


def with_minutes(args, usual):
    args.minutes = args.minutes or (1e9 if args.steps else usual)
    return args


def loss_sum(net, ids, pos, doc, weight):
    """Summed weighted cross-entropy of the next token; with experts, their balance loss on top."""
    extra = []
    y, _ = net(ids, pos, doc, extra)
    each = fn.cross_entropy(net.logits(y).flatten(0, 1), ids.roll(-1, 1).flatten(), reduction="none")
    loss = (each * weight.flatten()).sum()
    return loss + (0.01 * weight.sum() * sum(extra) if extra else 0.0)


def on_gpu(source):
    """The feeder's batches as (ids, pos, doc, weight) on the GPU."""
    for batch in source:
        moved = {}
        for name, rows in batch.items():
            ids, pos, doc, weight = torch.from_numpy(rows).pin_memory().to("cuda", non_blocking=True)
            moved[name] = (ids.long(), pos.long(), doc.long(), weight.float() / 255)
        yield moved


def main():
    args, started = arguments(), time.time()
    checkpoint.read_kernels(args.compile_cache)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    config = TARGETS[args.model]
    net = Pebble(config).cuda()
    optimizer = Optimizer(net, args.steps, args.muon_lr, args.adam_lr, cool=args.cool)
    log = {"arguments": vars(args), "parameters": sum(p.numel() for p in net.parameters()), "curve": [], "scores": []}
    step = 0
    if args.resume:
        state = checkpoint.load(args.resume, "train", "cuda")
        net.load_state_dict(state["net"])
        optimizer.load(state["optimizer"])
        step, log["curve"], log["scores"] = state["step"], state["curve"], state["scores"]
        optimizer.steps = optimizer.steps or state["steps"]
    encoder, some = Encoder(os.path.join(HERE, "tokenizer.json")), load(args.eval_set)[::4]
    shapes = {"short": (args.short, 512), "long": (args.long, 4096)}
    batches = Batches(os.path.join(HERE, "tokenizer.json"), args.seed, shapes, args.ramp, config.large,
                      args.long_every)
    source = on_gpu(Feeder(batches, step, args.steps or ENDLESS, args.workers))
    # The short rows are launch-bound and worth compiling; the few long ones are large matrices and run as they are.
    functions = {"short": loss_sum if args.no_compile else torch.compile(loss_sum, dynamic=False, fullgraph=True),
                 "long": loss_sum}
    boost = {"short": 1.0, "long": args.long_weight}

    def losses(batch):
        total, out = sum(boost[name] * part[3].sum() for name, part in batch.items()), {}
        for name, part in batch.items():
            loss = functions[name](net, *part)
            (loss * (boost[name] / total)).backward()
            out[name] = (loss / part[3].sum()).detach()
        return out
    train_step = Step(net, optimizer, losses, args.graph)
    print(f"{args.model}: {log['parameters']} parameters, from step {step}", flush=True)
    sums, since, since_step, out_of_time = {}, time.time(), step, False

    def save():
        os.makedirs(args.out, exist_ok=True)
        checkpoint.save(args.out, "train", {"net": net.state_dict(), "optimizer": optimizer.save(), "step": step,
                                            "steps": optimizer.steps, "curve": log["curve"], "scores": log["scores"]})
    while step < (optimizer.steps or ENDLESS) and not out_of_time:
        for name, loss in train_step(next(source), step).items():
            held = sums.setdefault(name, [0.0, 0])
            held[0], held[1] = held[0] + loss, held[1] + 1
        step += 1
        if step % 100 == 0 or step in (1, 10):
            means = {k: round(float(total) / n, 4) for k, (total, n) in sums.items()}
            rate = (step - since_step) / (time.time() - since)
            row = {"step": step, **means, "seconds": round(time.time() - started, 1), "steps_per_s": round(rate, 2)}
            log["curve"].append(row)
            print(row, flush=True)
            sums, since, since_step = {}, time.time(), step
            left = started + args.minutes * 60 - time.time()
            if step >= 300:  # the first steps compile
                optimizer.settle(step, rate, left)
            out_of_time = left < (0 if args.steps else -0.1 * args.minutes * 60)
        if step % args.eval_every == 0 and step != optimizer.steps:
            log["scores"].append({"step": step, **score(net, encoder, some)[0]})
            print(log["scores"][-1], flush=True)
            save()
            since, since_step, sums = time.time(), step, {}
    save()
    log["arguments"]["steps"] = optimizer.steps
    checkpoint.round_weights(net)
    checkpoint.export(net, config.text_config(), os.path.join(args.out, args.model), config.template)
    checkpoint.write_kernels(args.compile_cache)
    log["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2 ** 30, 1)
    log["seconds"] = round(time.time() - started, 1)
    with open(os.path.join(args.out, "train.json"), "w") as file:
        json.dump(log, file, indent=1)
    print(f"done: step {step}, {log['seconds']} s, {log['memory_gib']} GiB", flush=True)


if __name__ == "__main__":
    main()
