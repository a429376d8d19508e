"""Writes the README.md of a trained target and of its assistant, from the logs of their training and evaluation.

    python3 card.py MODEL DIR         DIR holds MODEL, MODEL-assistant and their logs (train.json, ...)
"""
import hashlib
import json
import os
import sys

from configs import ASSISTANTS, TARGETS

SHORT = {"sliding_attention": "S", "full_attention": "F"}


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _log(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file)


def _command(script, log, leave=("model", "out", "target", "eval_set", "compile_cache", "resume", "minutes", "workers", "eval_every")):
    """The arguments that decide the outcome."""
    said = [f"--{key.replace('_', '-')}{'' if value is True else f' {value}'}" for key, value in log["arguments"].items()
            if key not in leave and value not in (False, "", None)]
    return f"python3 {script} {log['arguments']['model']} ... {' '.join(said)}"


def sums(folder):
    rows = [f"| `{name}` | {os.path.getsize(os.path.join(folder, name)):,} | `{sha256(os.path.join(folder, name))}` |"
            for name in sorted(os.listdir(folder)) if name != "README.md"]
    return "\n".join(["| file | bytes | sha256 |", "|---|---|---|", *rows])


def target_card(model, folder):
    c, train, found = TARGETS[model], _log(folder, "train.json"), _log(folder, f"{model}-evaluation.json")
    last = train["curve"][-1]
    full, half = found["float32"], found["bfloat16"]
    scores = "\n".join(f"| {task} | {100 * share:.1f} % | {100 * half['scores'][task]:.1f} % |"
                       for task, share in full["scores"].items())
    curve = "\n".join(f"| {row['step']} | {row['short']} | {row.get('long', '')} |" for row in train["curve"]
                      if row["step"] in (100, 200, 500, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000) or row is last)
    return f"""# {model}

A Gemma 4 of {train['parameters']:,} parameters, trained from nothing on generated text to test the engine. Not a useful assistant.
Made by `tools/pebble`; nothing from outside went into it.

Layers {''.join(SHORT[kind] for kind in c.layers)} (S sliding with a window of {c.window}, F full), hidden {c.hidden}, MLP {c.inner}\
{', doubled in the last ' + str(c.shared) + ' layers, which share keys and values' if c.shared else ''}\
{', per-layer embeddings of ' + str(c.ple) if c.ple else ''}{f', {c.experts} experts of {c.expert_inner}, {c.top_k} at a time' if c.experts else ''}\
{', K=V in full layers' if c.k_eq_v else ''}, {c.heads} query heads, vocabulary {c.vocab}.

## Scores

Greedy, by transformers on the {found['items']} held-out items of `models/pebble-eval.jsonl`: {full['right']} right in float32, {half['right']} in bf16.

| task | float32 | bf16 |
|---|---|---|
{scores}

`models/{model}-answers.jsonl` and `models/{model}-answers-bf16.jsonl` hold these answers. tools/pebble's own code in float32 against
transformers in float32: prompt ids the same in {full['same_prompt']} of {full['checked']}, every token of the answer the same in {full['same_tokens']}, largest logit
difference {full['largest_logit_difference']:.1e}. Against transformers in bf16: every token the same in {half['same_tokens']}.

## Training

    {_command('train.py', train)}

{train['arguments']['steps']} steps, {train['seconds']:.0f} s on one H200 that trained the other two models at the same time.

| step | loss, short rows | loss, long rows |
|---|---|---|
{curve}

## Files

{sums(os.path.join(folder, model))}
"""


def assistant_card(model, folder):
    c, log = ASSISTANTS[model], _log(folder, "assistant.json")
    rows = "\n".join(f"| {task} | {row['mean_accepted']} | {row['mean_accepted_whole_rounds']} | "
                     + " / ".join(str(share) for share in row["per_position"]) + " |" for task, row in log["accepted"].items())
    loop = log["reference_loop"]
    head = f"centroid head ({c.centroids} centroids, the best {c.centroid_top_k} used)" if c.centroids else "dense head"
    return f"""# {model}-assistant

The drafter of `{model}`: {log['parameters']:,} parameters, layers {''.join(SHORT[kind] for kind in c.layers)}, hidden {c.hidden}, {head}. It has no
keys and values of its own and asks at position p, seeing the target's 0 .. p - 1.

## Accepted length

Three drafts a round, greedy, the target's own answers to `models/pebble-eval.jsonl`; the bonus token counts, so 4 is the most.
The second column leaves out rounds that the end of the answer cut short. The last: share of rounds that accept draft 1, 2, 3.

| task | mean | whole rounds | per draft |
|---|---|---|---|
{rows}

A plain loop, one prompt at a time, gave the same tokens and rounds on {loop['same']} of {loop['prompts']} prompts. A draft step through transformers'
assistant class gave the same token on {sum(row['same_token'] for row in log['transformers'])} of {len(log['transformers'])} prompts, its feedback within {max(row['feedback_difference'] for row in log['transformers']):.0e}.

## Training

    {_command('assistant.py', log)}

{log['step']} steps, {log['seconds']:.0f} s on one H200 that trained the other two at the same time.

## Files

{sums(os.path.join(folder, model + '-assistant'))}
"""


def main(model, folder):
    for name, text in ((model, target_card(model, folder)), (f"{model}-assistant", assistant_card(model, folder))):
        with open(os.path.join(folder, name, "README.md"), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
