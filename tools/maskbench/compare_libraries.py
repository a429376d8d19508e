#!/usr/bin/env python3
"""Asks llguidance and xgrammar about MaskBench's instances, with the vocabulary that mask_bench used.

    compare_libraries.py vocabulary.hex maskbench/data --ours results.txt [--sample 500] [--engine llguidance]

Counts what each engine gets right and times its masks, one core. With --ours (what mask_bench printed), lists schemas
that we judge wrongly and the library rightly, and the other way round. Needs the wheels of PyPI: llguidance, xgrammar.
"""

import argparse
import json
import pathlib
import random
import re
import sys
import time

import numpy as np


class Cutter:
    """Cuts a text into the longest tokens that fit, as mask_bench does."""

    def __init__(self, tokens):
        self.by_text = {}
        for idx, token in enumerate(tokens):
            if token:
                self.by_text.setdefault(token, idx)
        self.longest = max(map(len, self.by_text))

    def cut(self, text):
        at = 0
        while at < len(text):
            length = min(self.longest, len(text) - at)
            while text[at:at + length] not in self.by_text:
                length -= 1
            yield self.by_text[text[at:at + length]]
            at += length


class LlGuidance:
    def __init__(self, tokens, cutter):
        import llguidance
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        class Tokenizer:
            eos_token_id = 0
            bos_token_id = None
            special_token_ids = [idx for idx, token in enumerate(tokens) if not token]

            def __init__(self):
                self.tokens = [token or b"<special_%d>" % idx for idx, token in enumerate(tokens)]

            def __call__(self, text):
                return list(cutter.cut(text if isinstance(text, bytes) else text.encode()))

        self.library = llguidance
        self.fill = fill_next_token_bitmask
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer()))
        self.mask = allocate_token_bitmask(1, len(tokens))

    def compile(self, schema):
        matcher = self.library.LLMatcher(self.tokenizer, json.dumps({"grammars": [{"json_schema": schema}]}))
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, compiled):
        self.matcher = compiled.deep_copy()

    def step(self, token):
        self.fill(self.matcher, self.mask, 0)
        allowed = bool(self.mask[0, token // 32] >> (token % 32) & 1)
        return allowed and self.matcher.consume_token(token)

    def may_end(self):
        return self.matcher.is_accepting()


class XGrammar:
    def __init__(self, tokens, cutter):
        import xgrammar

        self.library = xgrammar
        info = xgrammar.TokenizerInfo([token.decode("latin-1") if not token else token for token in tokens],
                                      stop_token_ids=[0])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, len(tokens))

    def compile(self, schema):
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)

    def start(self, compiled):
        self.matcher = self.library.GrammarMatcher(compiled)

    def step(self, token):
        self.matcher.fill_next_token_bitmask(self.mask)
        return self.matcher.accept_token(token)

    def may_end(self):
        return self.matcher.accept_token(0)


ENGINES = {"llguidance": LlGuidance, "xgrammar": XGrammar}


def judge(engine, cutter, test, masks, first_masks):
    """right, wide, narrow or refused."""
    start = time.thread_time()
    try:
        compiled = engine.compile(test["schema"])
    except Exception:  # pylint: disable=broad-except  # each library has its own
        return "refused"
    first_masks.append(time.thread_time() - start)
    verdict = "right"
    for instance in test["tests"]:
        engine.start(compiled)
        accepted = True
        for token in cutter.cut(json.dumps(instance["data"], ensure_ascii=False).encode()):
            start = time.thread_time()
            accepted = engine.step(token)
            masks.append(time.thread_time() - start)
            if not accepted:
                break
        accepted = accepted and engine.may_end()
        if accepted != instance["valid"]:
            verdict = "wide" if accepted or verdict == "wide" else "narrow"
    return verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--engine", choices=ENGINES, default="llguidance")
    parser.add_argument("--sample", type=int, default=0, help="schemas to take at random; 0: all")
    parser.add_argument("--ours", help="what mask_bench printed")
    args = parser.parse_args()
    tokens = [bytes.fromhex(line.strip()) for line in open(args.vocabulary)]
    cutter = Cutter(tokens)
    engine = ENGINES[args.engine](tokens, cutter)
    files = sorted(args.data.glob("*.json"))
    if args.sample:
        files = sorted(random.Random(1).sample(files, args.sample))
    ours = {}
    if args.ours:
        for line in open(args.ours):
            if match := re.match(r"(WIDE|NARROW|REFUSED) (\S+\.json)", line):
                ours[match[2]] = match[1].lower()
    verdicts, masks, first_masks = {}, [], []
    for path in files:
        verdicts[path.name] = judge(engine, cutter, json.load(open(path)), masks, first_masks)
        sys.stdout.flush()
    for name, verdict in verdicts.items():
        if args.ours and verdict != ours.get(name, "right"):
            print(f"{name}: {args.engine} {verdict}, ours {ours.get(name, 'right')}")
    counts = {kind: sum(verdict == kind for verdict in verdicts.values())
              for kind in ("right", "narrow", "wide", "refused")}
    print(args.engine, counts)
    for name, values in (("mask and step", masks), ("compile", first_masks)):
        values = np.array(values) * 1e6
        print(f"{name} us: mean {values.mean():.1f}", " ".join(
            f"p{q} {np.percentile(values, q):.1f}" for q in (50, 75, 90, 95, 99)))


if __name__ == "__main__":
    main()
