"""Trains the assistant of one frozen target on one GPU.

    python3 assistant.py MODEL TARGET_DIR OUT_DIR [--steps N] [--minutes M]

Without --steps it takes as many as fit into --minutes. Writes OUT_DIR/MODEL-assistant in transformers' layout and, in
OUT_DIR/assistant.json, the accepted lengths per task and single draft steps against transformers' assistant class.
"""
import argparse
import collections
import json
import os
import time

import torch

import checkpoint
from configs import ASSISTANTS, TARGETS
from drafting import accepted, draft_loss, reference_loop, summary
from evalset import load, talk_of
from evaluate import assistant_against_transformers
from feeder import Feeder
from generate import greedy
from graphs import Step
from model import Assistant, Pebble
from optim import Optimizer
from packing import Batches
from render import prompt
from tokenizer import Encoder
from train import ENDLESS, HERE, on_gpu, with_minutes


def balanced_clusters(vectors, count, rounds=12):
    """Equal-sized k-means on unit vectors: [V] cluster of each row. Rows choose in order of how sure they are."""
    x = torch.nn.functional.normalize(vectors.float().cpu(), dim=-1)
    room = len(x) // count
    centers = x[torch.linspace(0, len(x) - 1, count).long()].clone()
    for _ in range(rounds):
        near = x @ centers.t()
        best = near.topk(2, -1).values
        left, cluster = [room] * count, [0] * len(x)
        ranks = near.argsort(-1, descending=True).tolist()
        for row in (best[:, 0] - best[:, 1]).argsort(descending=True).tolist():
            choice = next(c for c in ranks[row] if left[c])
            cluster[row], left[choice] = choice, left[choice] - 1
        cluster = torch.tensor(cluster)
        centers = torch.nn.functional.normalize(torch.zeros_like(centers).index_add(0, cluster, x), dim=-1)
    return cluster, centers


def measure(target, assistant, encoder, lines, drafts=3):
    """Accepted lengths per task over the target's own greedy answers."""
    prompts = [encoder.encode(prompt(talk_of(line), target.config.large)) for line in lines]
    answers = greedy(target, prompts)
    walks, by_task = accepted(target, assistant, list(zip(prompts, answers)), drafts), collections.defaultdict(list)
    for line, walk in zip(lines, walks):
        by_task[line["task"]].append(walk)
        by_task["all"].append(walk)
    return {task: summary(found, drafts) for task, found in sorted(by_task.items())}, prompts, answers, walks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(ASSISTANTS))
    parser.add_argument("target")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit into --minutes")
    parser.add_argument("--minutes", type=float, default=0.0, help="0: 1.5 without --steps, else no limit")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--rows", type=int, default=48, help="rows of 512 tokens per step")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--graph", action="store_true", help="capture the step as a CUDA graph")
    parser.add_argument("--compile-cache", default="")
    parser.add_argument("--eval-set", default=os.path.join(HERE, "..", "..", "models", "pebble-eval.jsonl"))
    args, started = with_minutes(parser.parse_args(), 1.5), time.time()
    checkpoint.read_kernels(args.compile_cache)
    torch.manual_seed(args.seed)
    config = ASSISTANTS[args.model]
    target = Pebble(TARGETS[args.model]).cuda().requires_grad_(False)
    checkpoint.read(target, args.target)
    net = Assistant(config).cuda()
    cluster = None
    if config.centroids:
        of_token, centers = balanced_clusters(target.model.embed_tokens.weight, config.centroids)
        net.masked_embedding.token_ordering.copy_(of_token.argsort(stable=True))
        cluster = torch.nn.functional.one_hot(of_token, config.centroids).float().cuda()
    optimizer = Optimizer(net, args.steps, args.muon_lr, args.adam_lr, cool=0.5)
    tokenizer = os.path.join(HERE, "tokenizer.json")
    encoder, lines = Encoder(tokenizer), load(args.eval_set)
    batches = Batches(tokenizer, args.seed, {"short": (args.rows, 512)}, 1, target.config.large)
    source = on_gpu(Feeder(batches, 0, args.steps or ENDLESS, args.workers))
    function = draft_loss if args.no_compile else torch.compile(draft_loss, dynamic=False, fullgraph=True)

    def losses(batch):
        loss = function(target, net, cluster, *batch["short"], args.drafts)
        loss.backward()
        return {"short": loss.detach()}
    train_step = Step(net, optimizer, losses, args.graph)
    log, total, since = {"arguments": vars(args), "parameters": sum(p.numel() for p in net.parameters()), "curve": []}, 0.0, time.time()
    print(f"{args.model}-assistant: {log['parameters']} parameters", flush=True)
    for step, batch in enumerate(source, 1):
        total = total + train_step(batch, step - 1)["short"]
        if step % 100 == 0:
            mean = round(float(total) / 100, 4)
            rate = 100 / (time.time() - since)
            row = {"step": step, "loss": mean, "seconds": round(time.time() - started, 1), "steps_per_s": round(rate, 2)}
            log["curve"].append(row)
            print(row, flush=True)
            total, since = 0.0, time.time()
            left = started + args.minutes * 60 - time.time()
            if step >= 200:  # the first steps allocate and capture
                optimizer.settle(step, rate, left)
            if left < (0 if args.steps else -0.1 * args.minutes * 60):
                break
        if step == optimizer.steps:
            break
    log["arguments"]["steps"] = optimizer.steps
    checkpoint.write_kernels(args.compile_cache)
    checkpoint.round_weights(net)
    folder = os.path.join(args.out, f"{args.model}-assistant")
    checkpoint.export(net, config.config(), folder)
    target.dtype = net.dtype = torch.float32
    log["accepted"], prompts, answers, walks = measure(target, net, encoder, lines)
    # The plain loop, one prompt at a time, must agree with the all-at-once walk.
    some = [i for i in range(0, len(lines), 25) if len(prompts[i]) < 1000]
    same = 0
    for i in some:
        generated, counts = reference_loop(target, net, prompts[i])
        same += generated == answers[i] and len(counts) == len(walks[i])
    log["reference_loop"] = {"prompts": len(some), "same": same}
    short = [ids for ids, line in zip(prompts, lines) if line["task"] in ("chat", "arithmetic")]
    log["transformers"] = [assistant_against_transformers(target, net, folder, ids) for ids in short[::30]]
    log["step"], log["seconds"] = step, round(time.time() - started, 1)
    with open(os.path.join(args.out, "assistant.json"), "w") as file:
        json.dump(log, file, indent=1)
    for task, found in log["accepted"].items():
        print(task, found, flush=True)
    print(log["transformers"], flush=True)
    print("reference loop", log["reference_loop"], log["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
