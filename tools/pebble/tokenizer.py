"""The pebble tokenizer: byte-pair encoding in the form of Gemma 4's tokenizer.json, 2,048 ids.

Ids: control tokens at their real places, 107.. runs of newlines, 138.. runs of spaces, 238..493 bytes, then pieces of
two or more characters (most frequent first), last the single characters. No piece has a space after another character,
none mixes newlines or digits with anything else: so a text may be cut there and the parts encoded from a cache.

    python3 tokenizer.py OUT.json        train on the generators' text and write the file
"""
import json
import re
import sys
from collections import Counter

SIZE = 2048
SPACE = "▁"
SPECIAL = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4, "<|tool>": 46, "<tool|>": 47, "<|tool_call>": 48,
           "<tool_call|>": 49, "<|tool_response>": 50, "<tool_response|>": 51, '<|"|>': 52, "<|think|>": 98,
           "<|channel>": 100, "<channel|>": 101, "<|turn>": 105, "<turn|>": 106,
           # Pictures and sounds: Gemma 4 has these at 255999 and above.
           "<|image|>": 53, "<|audio|>": 54, "<|video|>": 55, "<|image>": 56, "<image|>": 57, "<|audio>": 58,
           "<audio|>": 59}
CUTS = re.compile("|".join(map(re.escape, sorted(SPECIAL, key=len, reverse=True))) + r"|\n+|[0-9]| ?[^ \n0-9<]+|.")


def _word_counts(texts):
    counts = Counter()
    for text in texts:
        counts.update(CUTS.findall(text))
    return {tuple(word.replace(" ", SPACE)): n for word, n in counts.items() if word not in SPECIAL and len(word) > 1
            and word[0] != "\n"}


def train_merges(words, pieces, limit):
    """Plain BPE: the most frequent pair first, ties by text."""
    merges, found = [], []
    words = dict(words)
    pairs, where = Counter(), {}
    for word, n in words.items():
        for pair in zip(word, word[1:]):
            pairs[pair] += n
            where.setdefault(pair, set()).add(word)
    while len(found) < limit:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] <= 0:
            break
        joined = best[0] + best[1]
        merges.append(best)
        if joined not in pieces and joined not in found:
            found.append(joined)
        for word in list(where.pop(best, ())):
            n = words.pop(word, None)
            if n is None:
                continue
            for pair in zip(word, word[1:]):
                pairs[pair] -= n
            new, i = [], 0
            while i < len(word):
                if i + 1 < len(word) and (word[i], word[i + 1]) == best:
                    new.append(joined)
                    i += 2
                else:
                    new.append(word[i])
                    i += 1
            new = tuple(new)
            words[new] = words.get(new, 0) + n
            for pair in zip(new, new[1:]):
                pairs[pair] += n
                where.setdefault(pair, set()).add(new)
        pairs.pop(best, None)
    return merges, found


def build(texts, extra_words):
    words = _word_counts(texts)
    for word in extra_words:  # everyday words get a small count, so that strangers' text is not all letters
        for form in (SPACE + word, word.capitalize(), word):
            key = tuple(form)
            words[key] = words.get(key, 0) + 3
    vocab = {f"<unused{i}>": i for i in range(107)}
    by_id = {i: name for name, i in vocab.items()}
    by_id.update({i: name for name, i in SPECIAL.items()})
    by_id.update({106 + n: "\n" * n for n in range(1, 32)})
    by_id.update({136 + n: SPACE * n for n in range(2, 32)})
    by_id.update({i: f"<unused{i}>" for i in range(168, 238)})
    by_id[212] = "</s>"
    by_id.update({238 + b: f"<0x{b:02X}>" for b in range(256)})
    singles = [SPACE] + [chr(c) for c in range(33, 127)]
    merges, pieces = train_merges(words, set(), SIZE - 494 - len(singles))
    for i, piece in enumerate(pieces + singles):
        by_id[494 + i] = piece
    runs = [(c * n, c) for c in ("\n", SPACE) for n in range(30, 0, -1)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for token, i in SPECIAL.items()],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {by_id[i]: i for i in sorted(by_id)}, "merges": [list(pair) for pair in runs + merges]}}


class Encoder:
    """Encodes rendered text with a cache of cut parts; the same ids as the whole-text BPE."""

    def __init__(self, path):
        from tokenizers import Tokenizer
        self.base = Tokenizer.from_file(str(path))
        self.cache = {text: [i] for text, i in SPECIAL.items()}

    def encode(self, text):
        cache, ids = self.cache, []
        for part in CUTS.findall(text):
            got = cache.get(part)
            if got is None:
                got = self.base.encode(part, add_special_tokens=False).ids
                if len(cache) < 400_000:
                    cache[part] = got
            ids += got
        return ids

    def decode(self, ids):
        """Text with the control tokens visible."""
        return self.base.decode(list(ids), skip_special_tokens=False)


def main(path):
    from mixture import samples
    from render import segments
    from words import COMMON
    texts = ["".join(text for text, _ in segments(conversation)) for conversation in samples(0, 30_000)]
    spec = build(texts, sorted(set(COMMON)))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file, ensure_ascii=False, indent=None, separators=(",", ":"))
        file.write("\n")
    encoder = Encoder(path)
    tokens = sum(len(encoder.encode(text)) for text in texts)
    print(f"{len(spec['model']['vocab'])} tokens, {len(spec['model']['merges'])} merges, "
          f"{sum(map(len, texts)) / tokens:.2f} characters per token, {tokens / len(texts):.0f} tokens per sample")


if __name__ == "__main__":
    main(sys.argv[1])
