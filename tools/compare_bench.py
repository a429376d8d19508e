#!/usr/bin/env python3
"""Compares two result files of `lapidary bench`, value by value.

    tools/compare_bench.py BEFORE.json AFTER.json [--only REGEX]
    tools/compare_bench.py KERNELS.json OTHER.json --merge-baseline MERGED.json

serve, latency and throughput results are objects: their numbers are compared key by key, those of a
table of latencies by row and key. kernels
results hold rows of {name, shape, variant, rows, us, gbps, tflops, floor_share}, matched by the first
four; lines of such rows (cuda_step_bench --json) are read too. The ratio is AFTER / BEFORE; what has
no partner is listed at the end. Exits with 1 when nothing could be compared.

--merge-baseline writes the first file's kernels with the second's times as their baseline: baseline,
baseline_us and ratio (baseline_us / us) of every row that both have.
"""
import argparse
import json
import re
import sys

ROW_NUMBERS = ("us", "gbps", "tflops", "floor_share")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def row_label(row, path):
    """What tells kernel rows apart."""
    if not isinstance(row, dict) or "name" not in row:
        sys.exit(f"{path}: a row without a name: {row}")
    shape = row.get("shape", "")
    parts = [row["name"], shape if isinstance(shape, str) else json.dumps(shape), row.get("variant", "")]
    if "rows" in row:
        parts.append(f"rows {row['rows']}")
    return " ".join(part for part in parts if part)


def kernel_rows(result):
    """The rows of a kernels result; None when it is another kind."""
    if isinstance(result, list):
        return result
    if isinstance(result, dict) and isinstance(result.get("kernels"), list):
        return result["kernels"]
    return None


def flatten(result, path):
    """{label: number} of either kind of result."""
    rows = kernel_rows(result)
    if rows is not None:
        numbers = {}
        for row in rows:
            label = row_label(row, path)
            for name in ROW_NUMBERS:
                if is_number(row.get(name)):
                    if f"{label} {name}" in numbers:
                        sys.exit(f"{path}: {label} is there twice")
                    numbers[f"{label} {name}"] = row[name]
        return numbers
    if isinstance(result, dict):
        numbers = {key: value for key, value in result.items() if is_number(value)}
        for row in result.get("rows", []):
            label = f"batch {row['batch_size']}, {row['input_len']} in, {row['output_len']} out"
            numbers.update({f"{label} {key}": value for key, value in row.items() if is_number(value)})
        return numbers
    sys.exit(f"{path}: neither an object nor a list")


def read(path):
    try:
        with open(path) as file:
            text = file.read()
        try:
            return json.loads(text)
        except ValueError:
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
            if len(lines) < 2:
                raise
            return lines
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def settings_that_differ(before, after):
    """Texts (the model, the backend) that make the comparison doubtful when they differ."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return []
    return [f"{key}: {before.get(key)} -> {after.get(key)}"
            for key in ("bench", "model", "model_id", "device", "backend", "request_rate")
            if key in before and key in after and before[key] != after[key]]


def merge_baseline(kernels, others, paths, output):
    """Writes `kernels` with the times of `others` as baselines."""
    rows, other_rows = kernel_rows(kernels), kernel_rows(others)
    if rows is None or other_rows is None:
        sys.exit("--merge-baseline needs two results of `bench kernels`")
    baselines = {row_label(row, paths[1]): row for row in other_rows}
    for row in rows:
        other = baselines.get(row_label(row, paths[0]))
        if other is None or not is_number(other.get("us")) or not is_number(row.get("us")):
            continue
        row["baseline"] = other.get("implementation", paths[1])
        row["baseline_us"] = other["us"]
        row["ratio"] = other["us"] / row["us"]
    try:
        with open(output, "w") as file:
            json.dump(kernels, file, indent=1)
    except OSError as error:
        sys.exit(f"--merge-baseline: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--only", default="", help="compare labels that match this regular expression")
    parser.add_argument("--merge-baseline", metavar="FILE", default="",
                        help="also write BEFORE with AFTER's times as its baseline")
    args = parser.parse_args()
    before, after = read(args.before), read(args.after)
    if (kernel_rows(before) is None) != (kernel_rows(after) is None):
        sys.exit("the files hold results of different kinds")
    if args.merge_baseline:
        merge_baseline(before, after, (args.before, args.after), args.merge_baseline)
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
