"""The drafting loop: all positions at once for training and measuring, and one token after another as a server does it.

A round at position p knows the token x_p, whose keys and values are not in the cache yet, and y of position p - 1. Every
draft of the round asks at position p and sees the target's keys and values 0 .. p - 1, a sliding layer those > p - W.
"""
import torch

from generate import STOPS
from model import F, S, Masks, attend


def after(x, count=1):
    """Row t gets what row t + count holds (the last rows wrap round; they carry no weight)."""
    return x.roll(-count, 1)


def all_rounds(target, assistant, ids, pos, doc, drafts, teacher):
    """One round from every position of packed rows.

    Gives the target's logits [B, T, V] and, per draft, the assistant's normed hidden [B, T, h]. With `teacher` the next
    draft is fed the text's own token, else the drafted one.
    """
    with torch.no_grad():
        y, donors = target(ids, pos, doc)
        logits = target.logits(y)
        donors = {kind: (k.detach(), v.detach()) for kind, (k, v) in donors.items()}
    masks, turns = Masks(doc, target.config.window, strict=True), target.turns(pos)
    token, g, hiddens = ids, y.roll(1, 1), []
    for k in range(drafts):
        hidden, g = assistant.step(target.embed(token).detach(), g, turns,
                                   lambda kind, q: masks.attend(kind, q, *donors[kind]))
        hiddens.append(hidden)
        token = after(ids, k + 1) if teacher else assistant.draft_logits(hidden).argmax(-1)
    return logits, hiddens


@torch.no_grad()
def accepted(target, assistant, sequences, drafts=3, rows=16):
    """sequences: [(prompt ids, generated ids)], the target's own greedy output. Per sequence, the accepted drafts of each
    round of the walk and how many drafts the round could use: [[(accepted, usable)]]."""
    device, out = target.cos_full_attention.device, []
    for at in range(0, len(sequences), rows):
        part = [(p, p + g) for p, g in sequences[at:at + rows]]
        width = max(len(full) for _, full in part)
        width += -width % target.config.window
        ids = torch.tensor([full + [0] * (width - len(full)) for _, full in part], device=device)
        pos = torch.arange(width, device=device).expand(len(part), -1)
        _, hiddens = all_rounds(target, assistant, ids, pos, torch.ones_like(ids), drafts, teacher=False)
        tokens = [assistant.draft_logits(hidden).argmax(-1).tolist() for hidden in hiddens]
        for row, (prompt, full) in enumerate(part):
            walk, p = [], len(prompt)
            while p < len(full) - 1:
                usable = min(drafts, len(full) - 1 - p)
                good = 0
                while good < usable and tokens[good][row][p] == full[p + 1 + good]:
                    good += 1
                walk.append((good, usable))
                p += good + 1
            out.append(walk)
    return out


def summary(walks, drafts=3):
    """Mean committed tokens a round (bonus counted, a round cut short by the end of the text as it is) and the share of
    rounds that accept draft 1, 2, 3."""
    rounds = [entry for walk in walks for entry in walk]
    if not rounds:
        return {"rounds": 0}
    tokens = sum(good + (1 if good < usable or usable == drafts else 0) for good, usable in rounds)
    reach = [sum(good > k for good, _ in rounds) / max(1, sum(usable > k for _, usable in rounds)) for k in range(drafts)]
    whole = [good + 1 for good, usable in rounds if usable == drafts]
    return {"rounds": len(rounds), "mean_accepted": round(tokens / len(rounds), 3),
            "mean_accepted_whole_rounds": round(sum(whole) / max(1, len(whole)), 3),
            "per_position": [round(x, 3) for x in reach]}


@torch.no_grad()
def reference_loop(target, assistant, prompt, drafts=3, new=160):
    """A plain speculative decode of one prompt: draft, verify, commit. Gives (generated ids, accepted drafts per round)."""
    device = target.cos_full_attention.device
    c, cache, generated, counts = target.config, target.new_cache(1, len(prompt) + new + drafts + 2), [], []

    def run(tokens, start):
        ids = torch.tensor([tokens], device=device)
        return target.cached(ids, torch.arange(start, start + len(tokens), device=device)[None], cache)[0]
    y = run(prompt, 0)[-1]
    token, p = int(target.logits(y).argmax()), len(prompt)
    generated.append(token)
    while token not in STOPS and len(generated) < new:
        held = {kind: [x[:, :p] for x in cache[c.donor(kind)]] for kind in (S, F)}
        near = torch.arange(p, device=device)[None, None] > p - c.window
        masks = {S: near, F: torch.ones_like(near)}
        turns, g, draft = target.turns(torch.tensor([[p]], device=device)), y[None, None], [token]
        for _ in range(drafts):
            embedded = target.embed(torch.tensor([[draft[-1]]], device=device))
            hidden, g = assistant.step(embedded, g, turns, lambda kind, q: attend(q, *held[kind], masks[kind]))
            draft.append(int(assistant.draft_logits(hidden).argmax()))
        rows = run(draft, p)
        wanted = target.logits(rows).argmax(-1).tolist()
        good = 0
        while good < drafts and draft[good + 1] == wanted[good] and wanted[good] not in STOPS:
            good += 1
        generated += wanted[:good + 1]
        counts.append(good)
        token, y, p = wanted[good], rows[good], p + good + 1
    return generated, counts


def draft_loss(target, assistant, cluster, ids, pos, doc, weight, drafts):
    """Soft cross-entropy against the target's own distribution. A draft counts where the text has followed the target's
    first choice so far, since only then is it reached."""
    logits, hiddens = all_rounds(target, assistant, ids, pos, doc, drafts, teacher=True)
    odds = torch.softmax(logits, -1)
    spoken = (weight > 0.9).float()              # row t: the next token is the model's
    agree = (logits.argmax(-1) == after(ids)).float()
    alive = spoken.roll(1, 1)                    # row t: this token is the model's, so a round can start here
    total, count = 0.0, 0.0
    for k, hidden in enumerate(hiddens):
        want, alive = after(odds, k), alive * after(spoken, k)
        loss = -(want * torch.log_softmax(assistant.logits(hidden), -1)).sum(-1)
        if cluster is not None:
            c = torch.log_softmax(assistant.masked_embedding.centroids(hidden).float(), -1)
            loss = loss - (want @ cluster * c).sum(-1)
        total, count = total + (loss * alive).sum(), count + alive.sum()
        alive = alive * after(agree, k)
    return total / count.clamp(min=1.0)
