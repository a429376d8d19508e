#!/usr/bin/env python3
"""PyTorch's attention at the shapes of a `lapidary bench kernels` result.

    lapidary bench kernels --preset e4b --output-json KERNELS.json
    tools/attention_baseline.py KERNELS.json TORCH.json
    tools/compare_bench.py KERNELS.json TORCH.json --merge-baseline MERGED.json

Every attention row is timed with scaled_dot_product_attention by each backend that takes it (cuDNN,
flash, memory-efficient, math), all keys in one contiguous tensor of whole heads: no pages to follow,
K and V apart. The fastest counts. A sliding window is a slice of the keys for one query and a mask
for more. A row no backend takes is left out. Needs a GPU and PyTorch.
"""
import argparse
import json
import statistics
import sys
import warnings

L2_BYTES = 256 << 20  # rotated inputs are larger than this, so keys come from memory


def cases(result):
    rows = result["kernels"] if isinstance(result, dict) else result
    return [row for row in rows if "attention" in row and not row.get("variant")]


def key_range(shape):
    """First visible key and number of keys of a case."""
    total = shape["prefix"] + shape["queries"]
    window = shape["window"]
    first = max(0, shape["prefix"] - window + 1) if window else 0
    return first, total - first


class Inputs:
    """Queries, keys and values of one case, several sets of them."""

    def __init__(self, torch, shape, expand):
        first, count = key_range(shape)
        heads, kv_heads, dim = shape["num_heads"], shape["num_kv_heads"], shape["head_dim"]
        batch, queries = shape["sequences"], shape["queries"]
        kv_heads = heads if expand else kv_heads
        size = 2 * 2 * batch * kv_heads * count * dim
        self.sets = []
        for _ in range(max(1, min(8, L2_BYTES // size + 1))):
            make = lambda h, n: torch.randn(batch, h, n, dim, device="cuda", dtype=torch.bfloat16)
            self.sets.append((make(heads, queries), make(kv_heads, count), make(kv_heads, count)))
        self.mask = None
        if queries > 1:
            position = torch.arange(queries, device="cuda")[:, None] + shape["prefix"]
            key = torch.arange(count, device="cuda")[None, :] + first
            self.mask = key <= position
            if shape["window"]:
                self.mask &= key > position - shape["window"]
        self.is_causal = queries > 1 and shape["prefix"] == 0 and (not shape["window"] or queries <= shape["window"])


def time_us(torch, run, count):
    """Median microseconds of run(i), replayed as a graph of `count` launches."""
    run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for idx in range(count):
            run(idx)
    times = []
    for replay in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= 2:
            times.append(start.elapsed_time(end))
    return 1e3 * statistics.median(times) / count


def measure(torch, shape):
    """(us, backend) of the fastest backend; None when none takes the case."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attend = torch.nn.functional.scaled_dot_product_attention
    best = None
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.MATH):
        pairs = shape["sequences"] * shape["num_heads"] * shape["queries"] * key_range(shape)[1]
        if backend == SDPBackend.MATH and pairs > 1 << 30:
            continue  # its scores would not fit
        expand = backend == SDPBackend.EFFICIENT_ATTENTION  # takes no grouped heads
        try:
            inputs = Inputs(torch, shape, expand)
            options = {"scale": 1.0, "enable_gqa": not expand}
            if inputs.is_causal:
                options["is_causal"] = True
            elif inputs.mask is not None:
                options["attn_mask"] = inputs.mask
            with sdpa_kernel(backend):
                us = time_us(torch, lambda idx: attend(*inputs.sets[idx % len(inputs.sets)], **options),
                             len(inputs.sets))
        except (RuntimeError, torch.OutOfMemoryError):
            torch.cuda.synchronize()
            continue
        if best is None or us < best[0]:
            best = us, backend.name.lower()
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kernels")
    parser.add_argument("output")
    args = parser.parse_args()
    with open(args.kernels) as file:
        result = json.load(file)
    wanted = cases(result)
    if not wanted:
        sys.exit(f"{args.kernels}: no attention rows; make it with `lapidary bench kernels --output-json`")
    import torch
    warnings.simplefilter("ignore")  # every backend explains what it does not take
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU here")
    rows = []
    for row in wanted:
        best = measure(torch, row["attention"])
        if best is None:
            print(f"{row['name']} {row['shape']}: no backend takes it", file=sys.stderr)
            continue
        us, backend = best
        print(f"{row['name']} {row['shape']}: {us:.1f} us ({backend}), ours {row['us']:.1f}", flush=True)
        rows.append({"name": row["name"], "shape": row["shape"], "variant": "", "rows": row["rows"], "us": us,
                     "implementation": f"torch {backend}"})
    with open(args.output, "w") as file:
        json.dump({"bench": "kernels", "model": result.get("model", ""), "kernels": rows}, file, indent=1)


if __name__ == "__main__":
    main()
