"""Answers and scores of a saved target, by transformers in float32 and in bf16, and a check of our own code against it.

    python3 evaluate.py MODEL MODEL_DIR OUT_DIR

Writes OUT_DIR/MODEL-answers.jsonl and MODEL-answers-bf16.jsonl (one line per evaluation item: transformers' greedy answer
as text and ids, right or not) and MODEL-evaluation.json: for each precision the scores per task, in how many items
transformers' tokenizer and template give our prompt ids and its answer is model.py's in float32, token by token, and the
largest difference of a logit between the two.
"""
import argparse
import json
import os

import torch

import checkpoint
from configs import TARGETS
from evalset import load, talk_of
from generate import STOPS, greedy, judged
from model import Pebble
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
def their_answer(other, ids, guess, new=160):
    """transformers' greedy answer to the prompt `ids`, and its logits over prompt and guess. Where every token of the guess is
    its first choice, that is the answer; else it goes on alone from the first other choice."""
    logits = other(torch.tensor([ids + guess], device="cuda")).logits[0].float()
    best = logits[len(ids) - 1:-1].argmax(-1).tolist()
    answer = []
    for wanted, token in zip(best, guess):
        answer.append(wanted)
        if wanted != token:
            break
    while answer[-1] not in STOPS and len(answer) < new:
        row = other(torch.tensor([ids + answer], device="cuda")).logits[0, -1]
        answer.append(int(row.argmax()))
    return answer, logits


@torch.no_grad()
def against_transformers(net, folder, lines, texts, encoder, generated, dtype):
    """transformers' answers in this precision, and how they compare with ours in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").cuda().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    out, answers = {"checked": 0, "same_prompt": 0, "same_tokens": 0, "largest_logit_difference": 0.0}, []
    for line, text, guess in zip(lines, texts, generated):
        ids = encoder.encode(text)
        given = tokenizer.apply_chat_template(line["messages"], tools=line.get("tools"), add_generation_prompt=True,
                                              enable_thinking=line["enable_thinking"], tokenize=True, return_dict=False)
        answer, theirs = their_answer(other, ids, guess)
        answers.append(answer)
        out["checked"] += 1
        out["same_prompt"] += given == ids
        out["same_tokens"] += answer == guess
        gap = (theirs - own_logits(net, ids + guess))[len(ids) - 1:].abs().max()
        out["largest_logit_difference"] = max(out["largest_logit_difference"], float(gap))
    return out, answers


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


def write_answers(path, lines, answers, verdicts, encoder):
    with open(path, "w", encoding="utf-8") as file:
        for line, ids, good in zip(lines, answers, verdicts):
            file.write(json.dumps({"id": line["id"], "right": good, "text": encoder.decode(ids), "ids": ids},
                                  ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TARGETS))
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--eval-set", default=os.path.join(HERE, "..", "..", "models", "pebble-eval.jsonl"))
    args = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    net = Pebble(TARGETS[args.model], torch.float32).cuda()
    checkpoint.read(net, args.folder)
    encoder, lines = Encoder(os.path.join(HERE, "tokenizer.json")), load(args.eval_set)
    texts = [prompt(talk_of(line), net.config.large) for line in lines]
    generated, report = greedy(net, [encoder.encode(text) for text in texts]), {"items": len(lines)}
    for name, dtype, suffix in (("float32", torch.float32, ""), ("bfloat16", torch.bfloat16, "-bf16")):
        found, answers = against_transformers(net, args.folder, lines, texts, encoder, generated, dtype)
        scores, verdicts = judged(lines, texts, answers, encoder)
        report[name] = {"scores": scores, "right": sum(verdicts), **found}
        write_answers(os.path.join(args.out, f"{args.model}-answers{suffix}.jsonl"), lines, answers, verdicts, encoder)
    with open(os.path.join(args.out, f"{args.model}-evaluation.json"), "w") as file:
        json.dump(report, file, indent=1)
    print(json.dumps(report, indent=1), flush=True)


if __name__ == "__main__":
    main()
