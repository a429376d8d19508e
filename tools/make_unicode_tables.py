#!/usr/bin/env python3
"""Writes src/text/unicode_tables.inc: Python's case mappings and str.isprintable as ranges.

    python3 tools/make_unicode_tables.py > src/text/unicode_tables.inc
"""
import sys
import unicodedata


def runs(mapping):
    """Groups {code point: delta} into (first, last, stride, delta)."""
    out = []
    for cp in sorted(mapping):
        delta = mapping[cp]
        if out:
            first, last, stride, d = out[-1]
            step = cp - last
            if d == delta and step in (1, 2) and (stride == 0 or stride == step):
                out[-1] = (first, cp, step, d)
                continue
        out.append((cp, cp, 0, delta))
    return [(f, l, s or 1, d) for f, l, s, d in out]


def case_table(name, fn):
    simple, special = {}, {}
    for cp in range(0x80, 0x110000):
        if 0xD800 <= cp < 0xE000:
            continue
        mapped = fn(chr(cp))
        if mapped == chr(cp):
            continue
        if len(mapped) == 1:
            simple[cp] = ord(mapped) - cp
        else:
            special[cp] = mapped
    print(f"constexpr CaseRange k{name}Ranges[] = {{")
    for f, l, s, d in runs(simple):
        print(f"    {{0x{f:X}, 0x{l:X}, {s}, {d}}},")
    print("};")
    print(f"constexpr CaseSpecial k{name}Specials[] = {{")
    for cp, text in sorted(special.items()):
        escaped = "".join(f"\\x{b:02x}" for b in text.encode())
        print(f'    {{0x{cp:X}, "{escaped}"}},')
    print("};")


def range_table(name, predicate):
    print(f"constexpr CodeRange k{name}[] = {{")
    start = None
    for cp in range(0x80, 0x110001):
        inside = cp < 0x110000 and predicate(chr(cp))
        if inside and start is None:
            start = cp
        elif not inside and start is not None:
            print(f"    {{0x{start:X}, 0x{cp - 1:X}}},")
            start = None
    print("};")


print(f"// Unicode {unicodedata.unidata_version}, written by tools/make_unicode_tables.py.")
print("// clang-format off")
case_table("Upper", str.upper)
case_table("Lower", str.lower)
case_table("Title", str.title)
range_table("Unprintable", lambda c: not c.isprintable())
range_table("Cased", lambda c: c.isupper() or c.islower() or unicodedata.category(c) == "Lt")
range_table("Uppercase", str.isupper)
sys.stdout.write("// clang-format on\n")
