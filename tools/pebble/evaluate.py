"""Scores a saved target in float32 and checks it against transformers.

    python3 evaluate.py MODEL MODEL_DIR OUT_DIR [--assistant DIR] [--every N]

Writes OUT_DIR/MODEL-answers.jsonl (one line per evaluation item: the greedy answer as text and ids, right or not) and
OUT_DIR/MODEL-evaluation.json: scores per task, and of every N-th item whether transformers' tokenizer and template give
the same prompt ids and whether its float32 logits give the same tokens.
"""
import argparse
import json
import os

import torch

import checkpoint
from configs import ASSISTANTS, TARGETS
from drafting import reference_loop
from evalset import load, talk_of
from generate import score
from model import Assistant, Pebble
from render import prompt
from tokenizer import Encoder

HERE = os.path.dirname(os.path.abspath(__file__))


@torch.no_grad()
def own_logits(net, ids):
    """[T, V] of one sequence through the packed path (padded to whole blocks)."""
    width = len(ids) + -len(ids) % net.config.window
    row = torch.tensor([ids + [0] * (width - len(ids))], device="cuda")
    doc = (torch.arange(width, device="cuda") < len(ids)).long()[None]
    y, _ = net(row, torch.arange(width, device="cuda")[None], doc)
    return net.logits(y[0, :len(ids)])


@torch.no_grad()
def against_transformers(net, folder, lines, encoder, generated):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").cuda().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    out = {"checked": 0, "same_prompt": 0, "same_tokens": 0, "largest_logit_difference": 0.0}
    for line, answer in zip(lines, generated):
        ids = encoder.encode(prompt(talk_of(line), net.config.large))
        given = tokenizer.apply_chat_template(line["messages"], tools=line.get("tools"), add_generation_prompt=True,
                                              enable_thinking=line["enable_thinking"], tokenize=True, return_dict=False)
        theirs = other(torch.tensor([ids + answer], device="cuda")).logits[0].float()
        mine = own_logits(net, ids + answer)
        out["checked"] += 1
        out["same_prompt"] += given == ids
        out["same_tokens"] += theirs[len(ids) - 1:-1].argmax(-1).tolist() == answer
        gap = (theirs - mine)[len(ids) - 1:].abs().max()
        out["largest_logit_difference"] = max(out["largest_logit_difference"], float(gap))
    return out


@torch.no_grad()
def assistant_against_transformers(target, net, folder, ids):
    """One draft step at the end of `ids` through transformers' assistant class; prompts inside the window only, where
    all readings of the sliding bound agree."""
    from transformers import AutoModelForCausalLM
    try:
        other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").cuda().eval()
    except ValueError:
        from transformers import Gemma4AssistantForCausalLM
        other = Gemma4AssistantForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").cuda().eval()
    from model import attend
    p = len(ids) - 1
    row, pos = torch.tensor([ids], device="cuda"), torch.arange(len(ids), device="cuda")[None]
    y, donors = target(row, pos, torch.ones_like(row))
    held = {kind: (k[:, :p], v[:, :p]) for kind, (k, v) in donors.items()}
    both = torch.cat((target.embed(row[:, p:]), y[:, p - 1:p]), -1)
    theirs = other(inputs_embeds=both, position_ids=pos[:, p:],
                   shared_kv_states={kind: tuple(x.transpose(1, 2) for x in kv) for kind, kv in held.items()})
    mask = torch.ones(1, 1, p, dtype=torch.bool, device="cuda")
    hidden, feedback = net.step(target.embed(row[:, p:]), y[:, p - 1:p], target.turns(pos[:, p:]),
                                lambda kind, q: attend(q, *held[kind], mask))
    mine = net.draft_logits(hidden)
    return {"same_token": bool(mine.argmax() == theirs.logits.argmax()),
            "feedback_difference": float((feedback - theirs.last_hidden_state).abs().max()),
            "best_logit_difference": float((mine.max() - theirs.logits.max()).abs())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TARGETS))
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--assistant", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--eval-set", default=os.path.join(HERE, "..", "..", "models", "pebble-eval.jsonl"))
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    net = Pebble(TARGETS[args.model], torch.float32).cuda()
    checkpoint.read(net, args.folder)
    encoder, lines = Encoder(os.path.join(HERE, "tokenizer.json")), load(args.eval_set)
    scores, generated, verdicts = score(net, encoder, lines)
    report = {"scores": scores, "right": sum(verdicts), "items": len(lines),
              "transformers": against_transformers(net, args.folder, lines[::args.every], encoder, generated[::args.every])}
    if args.assistant:
        drafter = Assistant(ASSISTANTS[args.model], torch.float32).cuda()
        checkpoint.read(drafter, args.assistant)
        short = [encoder.encode(prompt(talk_of(line), net.config.large)) for line in lines if line["task"] in ("chat", "arithmetic")]
        report["assistant"] = [assistant_against_transformers(net, drafter, args.assistant, ids) for ids in short[::30]]
        generated_too, counts = reference_loop(net, drafter, short[0])
        report["loop"] = {"same": generated_too == generated[0], "accepted": counts}
    with open(os.path.join(args.out, f"{args.model}-answers.jsonl"), "w", encoding="utf-8") as file:
        for line, ids, good in zip(lines, generated, verdicts):
            file.write(json.dumps({"id": line["id"], "right": good, "text": encoder.decode(ids), "ids": ids},
                                  ensure_ascii=False) + "\n")
    with open(os.path.join(args.out, f"{args.model}-evaluation.json"), "w") as file:
        json.dump(report, file, indent=1)
    print(json.dumps(report, indent=1), flush=True)


if __name__ == "__main__":
    main()
