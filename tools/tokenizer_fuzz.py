#!/usr/bin/env python3
"""Differential fuzz of our tokenizer against the `tokenizers` package.

Makes small BPE vocabularies in the form of Gemma 4's tokenizer.json, asks both sides for the ids of
random texts and the text of random ids, and reports the first difference with what reproduces it.

    tools/tokenizer_fuzz.py --driver build/tests/tokenizer_driver --vocabularies 20 --cases 500

Exit code 77 means that the `tokenizers` package is not installed.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
SPACE_MARK = "\u2581"
SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|turn", "<|channel>",
            "<channel|>", '<|"|>', "<|image|>", "two words"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]

# Alphabets for random text, from common to hostile. Surrogates cannot be written in UTF-8.
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "aab",
    " ",
    "\n",
    "\t",
    SPACE_MARK,
    "0123456789",
    ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+`~",
    "<|turn>0xE296eos",
    "ÄÖÜäöüßéèêñçøåÆœŁżšČ",
    "\u0300\u0301\u0308\u0327\u200d\ufe0f\u20e3",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "कखगघङचछजझञािीुूेैोौ्",
    "กขคงจฉชซญดตถทนบปผพฟมยรลวสหอะาิีึื",
    "一二三四五六七八九十百千万你好世界中国日本語",
    "ひらがなカタカナー。、",
    "가나다라마바사한국어",
    "😀😁🤣👍🏽👩‍👩‍👧‍👦🇩🇪🏳️‍🌈🧪",
    "\x00\x01\x02\x07\x08\x0b\x0c\x0d\x1b\x7f\x80\x85\x9f\xa0\xad",
    "\u2028\u2029\u200b\u200e\u202e\ufeff\ufffd\uffff\U0010ffff",
]


def random_word(rng):
    alphabet = rng.choice(ALPHABETS)
    return "".join(rng.choice(alphabet) for _ in range(rng.choice([1, 1, 2, 3, 5, 8, 13])))


def random_text(rng, vocabulary):
    if rng.random() < 0.01:  # long enough for every way of merging, with few places to cut
        few = rng.choices(vocabulary, k=rng.choice([2, 5, 50]))
        return "".join(rng.choices(few, k=rng.choice([500, 5000])))
    parts = []
    for _ in range(rng.choice([0, 1, 2, 4, 8, 16, 40, 160])):
        kind = rng.random()
        if kind < 0.45:
            parts.append(random_word(rng))
        elif kind < 0.6:
            parts.append(" " * rng.choice([1, 1, 1, 2, 3, 7, 40]))
        elif kind < 0.7:
            parts.append(rng.choice(SPECIALS))
        elif kind < 0.75:
            special = rng.choice(SPECIALS)
            parts.append(special[: rng.randrange(len(special))])
        elif kind < 0.95:
            parts.append(rng.choice(vocabulary))  # a piece: pairs that merges know are frequent
        else:
            code_point = rng.randrange(0x110000)
            parts.append("?" if 0xD800 <= code_point < 0xE000 else chr(code_point))
    return "".join(parts)


def train_pieces(tokenizers, rng, base):
    """(single code points, merges) of a trainer run over random text."""
    model = tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    trained = tokenizers.Tokenizer(model)
    trained.normalizer = base.normalizer
    if rng.random() < 0.7:  # without it, pieces run across words
        trained.pre_tokenizer = tokenizers.pre_tokenizers.Split(SPACE_MARK, "merged_with_next")
    words = [random_word(rng) for _ in range(300)]
    lines = [" ".join(rng.choices(words, k=30)) for _ in range(100)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=rng.choice([150, 400, 1200]), limit_alphabet=rng.choice([40, 120, 400]),
        show_progress=False)
    trained.train_from_iterator(lines, trainer)
    learned = json.loads(trained.to_str())["model"]
    merges = [merge if isinstance(merge, list) else merge.split(" ") for merge in learned["merges"]]
    merged = {left + right for left, right in merges}
    return [piece for piece in learned["vocab"] if piece not in merged], merges


def vary_merges(rng, pieces, merges):
    """Merge lists that training alone does not give."""
    kind = rng.random()
    if kind < 0.35:
        return merges
    if kind < 0.65:  # Gemma's own form: every split of every piece, by the piece's rank
        known = set(pieces) | {left + right for left, right in merges}
        splits = []
        for left, right in merges:
            piece = left + right
            options = [(piece[:cut], piece[cut:]) for cut in range(len(piece) - 1, 0, -1)]
            splits += [[a, b] for a, b in options if a in known and b in known]
        return splits
    merges = list(merges)
    rng.shuffle(merges)  # long pieces before the short ones they are made of
    if kind > 0.9:
        merges += rng.sample(merges, len(merges) // 4)  # repeated pairs: the last rank counts
    return merges


def make_file(tokenizers, rng, base):
    pieces, merges = train_pieces(tokenizers, rng, base)
    merges = vary_merges(rng, pieces, merges)
    if rng.random() < 0.3:  # runs of spaces and newlines, longest first
        for char in (SPACE_MARK, "\n"):
            pieces.append(char)
            merges = [[char * (length - 1), char] for length in range(9, 1, -1)] + merges
    if rng.random() < 0.15:  # merges over byte tokens
        for _ in range(20):
            merges.insert(rng.randrange(len(merges) + 1), rng.choices(BYTE_TOKENS[0x80:], k=2))
        merges.append([rng.choice(pieces), rng.choice(BYTE_TOKENS)])
    merged = [left + right for left, right in merges]
    in_vocabulary = rng.random() < 0.8  # whether model.vocab has the added tokens too
    names = list(dict.fromkeys((SPECIALS if in_vocabulary else []) + BYTE_TOKENS + pieces + merged))
    if not in_vocabulary:
        names = [name for name in names if name not in SPECIALS]
    # The package numbers missing added tokens itself, right after a dense vocabulary: no holes then.
    holes = 50 if in_vocabulary else 0
    ids = rng.sample(range(len(names) + holes), len(names))
    vocabulary = dict(zip(names, ids))
    added = [{"id": vocabulary.get(name, len(names) + idx), "content": name, "single_word": False,
              "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for idx, name in enumerate(SPECIALS)]
    for token in added:
        if " " not in token["content"] and rng.random() < 0.1:
            token["normalized"] = True
        if rng.random() < 0.1:
            token["special"] = False
    file = json.loads(base.to_str())
    file["added_tokens"] = sorted(added, key=lambda token: token["id"])
    if rng.random() < 0.3:
        merges = [" ".join(merge) for merge in merges]
    file["model"] = {"type": "BPE", "dropout": None, "unk_token": "<unk>",
                     "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                     "byte_fallback": True, "ignore_merges": False, "vocab": vocabulary,
                     "merges": merges}
    return file


def make_base(tokenizers):
    base = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    base.normalizer = tokenizers.normalizers.Replace(" ", SPACE_MARK)
    base.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    decoders = tokenizers.decoders
    base.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return base


def is_mixed(run):
    """Whether bytes hold both well-formed characters and malformed bytes."""
    try:
        run.decode("utf-8")
        return False
    except UnicodeDecodeError:
        return b"\xef\xbf\xbd" in run or run.decode("utf-8", "replace").strip("\ufffd") != ""


def mixes_bytes(ids, bytes_by_id, ignored):
    """Whether a run of byte tokens is mixed: where the streaming rule differs by design."""
    run = bytearray()
    for token in [*ids, None]:
        if token in bytes_by_id:
            run.append(bytes_by_id[token])
        elif token not in ignored:
            if is_mixed(run):
                return True
            run.clear()
    return False


def random_segments(rng, text):
    """Random cuts of `text` into trusted and untrusted parts."""
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
    bounds = [0, *cuts, len(text)]
    return [[text[a:b], rng.random() < 0.5] for a, b in zip(bounds, bounds[1:])]


def forges_nothing(segments):
    """Whether every added token in the joined text lies in trusted text."""
    joined = "".join(text for text, _ in segments)
    trusted = "".join(("t" if is_trusted else "u") * len(text) for text, is_trusted in segments)
    for special in SPECIALS:
        at = joined.find(special)
        while at >= 0:
            if "u" in trusted[at: at + len(special)]:
                return False
            at = joined.find(special, at + 1)
    return True


def make_cases(rng, count, reference, file):
    """Pairs of a question to the driver and the answer the package gives."""
    vocabulary = list(file["model"]["vocab"])
    bytes_by_id = {file["model"]["vocab"][name]: byte for byte, name in enumerate(BYTE_TOKENS)}
    special_ids = {token["id"] for token in file["added_tokens"] if token["special"]}
    known = set(reference.get_vocab(with_added_tokens=True).values())
    holes = set(range(max(known) + 1)) - known
    for _ in range(count):
        text = random_text(rng, vocabulary)
        ids = reference.encode(text, add_special_tokens=False).ids
        yield {"text": text}, {"ids": ids}
        if not any(special in text for special in SPECIALS):
            yield {"text": text, "plain": True}, {"ids": ids}
        segments = random_segments(rng, text)
        if forges_nothing(segments):
            yield {"segments": segments}, {"ids": ids}
        ids = list(ids)
        if rng.random() < 0.5:
            ids = rng.choices(range(max(known) + 1), k=rng.randrange(12))
        if rng.random() < 0.5:
            for _ in range(rng.randrange(6)):
                ids.insert(rng.randrange(len(ids) + 1), rng.choice(list(bytes_by_id)))
        for skip in (False, True):
            ignored = holes | (special_ids if skip else set())
            if not mixes_bytes(ids, bytes_by_id, ignored):
                decoded = reference.decode(ids, skip_special_tokens=skip)
                yield ({"ids": ids, "skip_special": skip}, {"text": decoded, "streamed": decoded})


def run_vocabulary(tokenizers, driver, seed, count, base, keep):
    rng = random.Random(seed)
    file = make_file(tokenizers, rng, base)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(json.dumps(file, ensure_ascii=rng.random() < 0.5), encoding="utf-8")
        reference = tokenizers.Tokenizer.from_file(str(path))
        cases = list(make_cases(rng, count, reference, file))
        questions = "".join(json.dumps(question) + "\n" for question, _ in cases)
        done = subprocess.run([driver, str(path)], input=questions.encode(), capture_output=True)
        answers = done.stdout.decode().split("\n")[:-1]
        failure = None
        if done.returncode != 0 or len(answers) != len(cases):
            failure = f"driver: exit code {done.returncode}, {done.stderr.decode()[-500:]}"
        for (question, expected), answer in zip(cases, answers):
            if json.loads(answer) != expected:
                failure = (f"question {json.dumps(question)}\nexpected {json.dumps(expected)}\n"
                           f"got      {answer}")
                break
        if failure and keep:
            Path(keep).write_bytes(path.read_bytes())
    return len(cases), failure


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--driver", required=True, help="the tokenizer_driver program")
    parser.add_argument("--vocabularies", type=int, default=10)
    parser.add_argument("--cases", type=int, default=200, help="texts for each vocabulary")
    parser.add_argument("--seed", type=int, default=1, help="of the first vocabulary")
    parser.add_argument("--keep", help="where to leave the tokenizer.json of a difference")
    options = parser.parse_args()
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        print(f"skipped: {error}")
        return SKIPPED
    base = make_base(tokenizers)
    total = 0
    for seed in range(options.seed, options.seed + options.vocabularies):
        count, failure = run_vocabulary(tokenizers, options.driver, seed, options.cases, base,
                                        options.keep)
        total += count
        if failure:
            print(f"seed {seed}: {failure}")
            return 1
    print(f"{total} answers agree over {options.vocabularies} vocabularies")
    return 0


if __name__ == "__main__":
    sys.exit(main())
