#!/usr/bin/env python3
"""Compares two result files of `lapidary bench`, value by value.

    tools/compare_bench.py BEFORE.json AFTER.json [--only REGEX]

serve, latency and throughput results are objects: their numbers are compared key by key. kernels
results are lists of {name, shape, us, gbps, tflops, floor_share}: rows are matched by name and shape.
The ratio is AFTER / BEFORE; what has no partner is listed at the end. Exits with 1 when nothing could
be compared.
"""
import argparse
import json
import re
import sys

ROW_NUMBERS = ("us", "gbps", "tflops", "floor_share")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def row_key(row):
    shape = row.get("shape", "")
    return row["name"], shape if isinstance(shape, str) else json.dumps(shape)


def flatten(result, path):
    """{label: number} of either kind of result."""
    if isinstance(result, list):
        numbers = {}
        for row in result:
            if not isinstance(row, dict) or "name" not in row:
                sys.exit(f"{path}: a row without a name: {row}")
            label = " ".join(part for part in row_key(row) if part)
            for name in ROW_NUMBERS:
                if is_number(row.get(name)):
                    numbers[f"{label} {name}"] = row[name]
        return numbers
    if isinstance(result, dict):
        return {key: value for key, value in result.items() if is_number(value)}
    sys.exit(f"{path}: neither an object nor a list")


def read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def settings_that_differ(before, after):
    """Texts (the model, the backend) that make the comparison doubtful when they differ."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return []
    return [f"{key}: {before.get(key)} -> {after.get(key)}"
            for key in ("bench", "model", "model_id", "backend", "request_rate")
            if key in before and key in after and before[key] != after[key]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--only", default="", help="compare labels that match this regular expression")
    args = parser.parse_args()
    before, after = read(args.before), read(args.after)
    if isinstance(before, list) != isinstance(after, list):
        sys.exit("the files hold results of different kinds")
    try:
        only = re.compile(args.only)
    except re.error as error:
        sys.exit(f"--only: {error}")
    numbers_before = flatten(before, args.before)
    numbers_after = flatten(after, args.after)
    common = [label for label in numbers_before if label in numbers_after and only.search(label)]
    width = max([len(label) for label in common], default=0)
    print(f"{'':<{width}} {'before':>14} {'after':>14} {'ratio':>8}")
    for label in common:
        old, new = numbers_before[label], numbers_after[label]
        ratio = f"{new / old:8.3f}" if old else "       -"
        print(f"{label:<{width}} {old:14.6g} {new:14.6g} {ratio}")
    for difference in settings_that_differ(before, after):
        print(f"differs: {difference}")
    for name, mine, other in (("before", numbers_before, numbers_after),
                              ("after", numbers_after, numbers_before)):
        alone = [label for label in mine if label not in other and only.search(label)]
        if alone:
            print(f"only {name}: {', '.join(alone)}")
    if not common:
        sys.exit("nothing could be compared")


if __name__ == "__main__":
    main()
