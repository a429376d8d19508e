#!/usr/bin/env python3
"""Offline batch: a JSON Lines file of prompts in, one of answers out, in one process without a server.

    ./lapidary package wheel && pip install dist/lapidary-*.whl
    examples/batch.py questions.jsonl answers.jsonl      # lines: {"prompt": "What is 48 + 17?"}"""

import argparse
import json

import lapidary


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions")
    parser.add_argument("answers")
    parser.add_argument("--model", help="a checkpoint directory or a GGUF file (default: the bundled toy model)")
    parser.add_argument("--max-tokens", type=int, default=256)
    arguments = parser.parse_args()

    with open(arguments.questions) as file:
        prompts = [json.loads(line)["prompt"] for line in file if line.strip()]
    with lapidary.LLM(arguments.model) as llm:
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts],
                           lapidary.SamplingParams(temperature=0, max_tokens=arguments.max_tokens), use_tqdm=False)
    with open(arguments.answers, "w") as file:
        for prompt, output in zip(prompts, outputs):
            json.dump({"prompt": prompt, "answer": output.outputs[0].text}, file)
            file.write("\n")


if __name__ == "__main__":
    main()
