"""Greedy generation in batches, and scores on the evaluation set."""
import collections

import torch

from evalset import judge, talk_of
from render import prompt

STOPS = (1, 106, 50)


@torch.no_grad()
def greedy(net, prompts, new=160, rows=64):
    """Lists of ids -> lists of generated ids, the stop token included. Similar lengths share a batch."""
    device = net.cos_full_attention.device
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out, at = [None] * len(prompts), 0
    while at < len(order):
        # A prompt of thousands of tokens has large score matrices: fewer rows then.
        count = rows if len(prompts[order[min(at + rows, len(order)) - 1]]) < 1024 else 8
        chosen = order[at:at + count]
        at += count
        lengths = torch.tensor([len(prompts[i]) for i in chosen], device=device)
        width = int(lengths.max())
        ids = torch.tensor([prompts[i] + [0] * (width - len(prompts[i])) for i in chosen], device=device)
        cache = net.new_cache(len(chosen), width + new)
        hidden = net.cached(ids, torch.arange(width, device=device).expand(len(chosen), -1), cache)
        row = hidden[torch.arange(len(chosen), device=device), lengths - 1]
        done = torch.zeros(len(chosen), dtype=torch.bool, device=device)
        steps = []
        for step in range(new):
            token = net.logits(row).argmax(-1)
            steps.append(token)
            done |= (token == 1) | (token == 106) | (token == 50)
            if step % 8 == 7 and bool(done.all()):
                break
            row = net.cached(token[:, None], (lengths + step)[:, None], cache)[:, 0]
        grown = torch.stack(steps, 1).tolist()
        for i, tokens in zip(chosen, grown):
            end = next((n for n, token in enumerate(tokens) if token in STOPS), len(tokens) - 1)
            out[i] = tokens[:end + 1]
    return out


def score(net, encoder, lines):
    """({task or task/bin: share right}, [generated ids per line], [right per line])"""
    texts = [prompt(talk_of(line), net.config.large) for line in lines]
    generated = greedy(net, [encoder.encode(text) for text in texts])
    scores, verdicts = judged(lines, texts, generated, encoder)
    return scores, generated, verdicts


def judged(lines, texts, generated, encoder):
    """({task or task/bin: share right}, [right per line]) of answers to the prompts `texts`."""
    right, total, verdicts = collections.Counter(), collections.Counter(), []
    for line, text, ids in zip(lines, texts, generated):
        opened = "<|channel>thought\n" if text.endswith("<|channel>thought\n") else ""
        good = judge(line, opened + encoder.decode(ids))
        verdicts.append(good)
        for key in {line["task"], f"recall {line['bin']}" if line.get("bin") else line["task"]}:
            total[key] += 1
            right[key] += good
    return {key: round(right[key] / total[key], 4) for key in sorted(total)}, verdicts
