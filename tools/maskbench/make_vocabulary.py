#!/usr/bin/env python3
"""Writes a vocabulary for mask_bench: a line of hexadecimal bytes for each token, empty for special ones.

    make_vocabulary.py tokenizer.json vocabulary.hex
    make_vocabulary.py --tiktoken a.tiktoken --tekken tekken.json --size 262144 vocabulary.hex

The second form joins public byte-level vocabularies, for machines without a Gemma 4 checkpoint. What they lack to
--size is filled with variants of their words (a blank in front, capitals, plurals), as large vocabularies have them.
"""

import argparse
import base64
import json
import re

NUM_SPECIAL = 256


def from_tokenizer_json(path):
    data = json.load(open(path, encoding="utf-8"))
    special = {token["id"] for token in data["added_tokens"] if token["special"]}
    vocabulary = dict(data["model"]["vocab"])
    for token in data["added_tokens"]:
        vocabulary[token["content"]] = token["id"]
    tokens = [b""] * (max(vocabulary.values()) + 1)
    for piece, idx in vocabulary.items():
        if idx in special:
            continue
        byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
        tokens[idx] = bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()
    return tokens


def joined(tiktoken_paths, tekken_paths, size):
    words = [bytes([byte]) for byte in range(256)]
    for path in tekken_paths:
        words += [base64.b64decode(entry["token_bytes"]) for entry in json.load(open(path))["vocab"]]
    for path in tiktoken_paths:
        words += [base64.b64decode(line.split()[0]) for line in open(path, "rb") if line.strip()]
    tokens = [b""] * NUM_SPECIAL + list(dict.fromkeys(words))
    seen = set(tokens)
    for word in words:
        for variant in (b" " + word, word.capitalize(), word + b"s"):
            if len(tokens) >= size:
                return tokens[:size]
            if len(word) > 2 and variant not in seen:
                seen.add(variant)
                tokens.append(variant)
    return tokens[:size]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer_json", nargs="?")
    parser.add_argument("output")
    parser.add_argument("--tiktoken", action="append", default=[])
    parser.add_argument("--tekken", action="append", default=[])
    parser.add_argument("--size", type=int, default=262144)
    args = parser.parse_args()
    if args.tokenizer_json:
        tokens = from_tokenizer_json(args.tokenizer_json)
    else:
        tokens = joined(args.tiktoken, args.tekken, args.size)
    with open(args.output, "w") as out:
        out.writelines(token.hex() + "\n" for token in tokens)
    print(f"{len(tokens)} tokens, {sum(not token for token in tokens)} of them special")


if __name__ == "__main__":
    main()
