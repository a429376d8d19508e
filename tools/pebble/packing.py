"""Conversations -> fixed rows of token ids. One batch is a pure function of (seed, step).

ids  [B, T] int16; pos [B, T] position inside its document; doc [B, T] number of the document in the row, from 1, 0 for
padding; weight [B, T] uint8: loss weight of the NEXT token, in 1/255.
"""
import numpy as np

from mixture import conversation
from render import segments
from rng import Rng


def tokenise(encoder, talk, prompt_weight, empty=""):
    ids, weights = [], []
    for text, weight in segments(talk, prompt_weight, empty):
        part = encoder.encode(text)
        ids += part
        weights += [int(weight * 255)] * len(part)
    return ids, weights


def rows(encoder, rng, count, length, long, level, prompt_weight, large=False):
    """Fill `count` rows from a small pool, always taking the largest document that still fits."""
    out = {name: np.zeros((count, length), kind) for name, kind in
           (("ids", np.int16), ("pos", np.int16), ("doc", np.uint8), ("weight", np.uint8))}
    pool = []
    for row in range(count):
        at, number = 0, 0
        while True:
            while len(pool) < 24:
                talk = conversation(rng, long, level)
                empty = rng.pick(["all", "all", "last"]) if large else ""
                item = tokenise(encoder, talk, 0.0 if talk.get("quiet") else prompt_weight, empty)
                if len(item[0]) <= length:
                    pool.append(item)
            if at == 0:
                pick = 0  # the oldest, so that nothing waits for ever
            else:
                fits = [i for i, item in enumerate(pool) if len(item[0]) <= length - at]
                if not fits or number == 250:
                    break
                pick = max(fits, key=lambda i: len(pool[i][0]))
            ids, weights = pool.pop(pick)
            end, number = at + len(ids), number + 1
            out["ids"][row, at:end] = ids
            out["pos"][row, at:end] = np.arange(len(ids))
            out["doc"][row, at:end] = number
            out["weight"][row, at:end - 1] = weights[1:]
            at = end
            if at >= length - 16:
                break
    return out


def level(step, ramp):
    """How hard the recall tasks are: from 0.02 to 1 over `ramp` steps."""
    return min(1.0, 0.02 + step / max(1, ramp))


class Batches:
    """Map-style data set: item `step` is {"short": rows, "long": rows}, long rows in every `long_every`-th step."""

    def __init__(self, tokenizer, seed, shapes, ramp, large=False, long_every=1, prompt_weight=0.05):
        self.tokenizer, self.seed, self.shapes, self.ramp = tokenizer, seed, shapes, ramp
        self.large, self.long_every, self.prompt_weight, self.encoder = large, long_every, prompt_weight, None

    def has(self, name, step):
        return self.shapes[name][0] > 0 and (name == "short" or step % self.long_every == 0)

    def __getitem__(self, step):
        if self.encoder is None:
            from tokenizer import Encoder
            self.encoder = Encoder(self.tokenizer)
        return {name: rows(self.encoder, Rng(self.seed, step, name), count, length, name == "long",
                           level(step, self.ramp), self.prompt_weight, self.large)
                for name, (count, length) in self.shapes.items() if self.has(name, step)}
