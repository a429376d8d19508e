#!/usr/bin/env python3
"""Retrieval-augmented generation: answers questions from the lines of a text file.

    ./lapidary serve                                        # in another terminal
    examples/rag.py notes.txt "What is the code of Otto?"   # needs: pip install openai

Retrieval is lexical (rare words count most), so nothing but the server is needed; put a vector store in its place.
What is the same for all questions comes first in the prompt, so the prefix cache computes it once."""

import argparse
import collections
import math
import re

import openai

PROMPT = "Here are some facts. {facts}\n\n{question}"


def words(text):
    return re.findall(r"\w+", text.lower())


class Index:
    """Lines of text, ranked by the rarity of the words they share with a question."""

    def __init__(self, lines):
        self.lines = [line.strip() for line in lines if line.strip()]
        counts = collections.Counter(word for line in self.lines for word in set(words(line)))
        self.weight = {word: math.log(1 + len(self.lines) / count) for word, count in counts.items()}

    def best(self, question, num_lines):
        asked = set(words(question))
        score = lambda line: sum(self.weight[word] for word in set(words(line)) & asked)
        return sorted(self.lines, key=score, reverse=True)[:num_lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", help="text with one fact a line")
    parser.add_argument("question", nargs="+", help="one or more questions")
    parser.add_argument("--num-facts", type=int, default=4, help="lines given to the model (default: %(default)s)")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()

    with open(arguments.file) as file:
        index = Index(file)
    client = openai.OpenAI(base_url=arguments.base_url, api_key="none")
    model = client.models.list().data[0].id
    for question in arguments.question:
        facts = " ".join(index.best(question, arguments.num_facts))
        answer = client.chat.completions.create(
            model=model, temperature=0,
            messages=[{"role": "user", "content": PROMPT.format(facts=facts, question=question)}])
        print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
