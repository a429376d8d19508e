"""`lapidary bench latency` and `throughput`, and the script that compares results."""

import json
import subprocess
import sys

import pytest

TINY = ("--preset", "tiny-e", "--device", "cpu", "--threads", "1", "--input-len", "24",
        "--output-len", "12")


def test_latency_measures_decode_only_steps(lapidary):
    done = lapidary("bench", "latency", *TINY, "--batch-size", "3", "--num-iters", "2", "--json",
                    "--memory-bandwidth", "10")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bench"] == "latency" and result["batch_size"] == 3
    assert 0 < result["num_steps"] <= 2 * 11
    for name in ("ttft_ms", "tpot_ms", "step_ms"):
        assert 0 < result[f"p10_{name}"] <= result[f"median_{name}"] <= result[f"p90_{name}"]
    assert result["median_tpot_ms"] == result["median_step_ms"]  # nothing is drafted
    # Of all steps together: a slow one weighs more than in the median.
    assert 0.1 < result["decode_tokens_per_s"] * result["median_tpot_ms"] / 3e3 < 1.5
    assert result["floor_step_ms"] == pytest.approx(result["step_bytes"] / 10e6)
    assert result["floor_share"] == pytest.approx(result["floor_step_ms"] / result["median_step_ms"])


def test_latency_prints_a_table(lapidary, checkpoint):
    done = lapidary("bench", "latency", checkpoint, "--input-len", "8", "--output-len", "4",
                    "--num-iters", "1", "--num-iters-warmup", "0")
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout and "TPOT" in done.stdout and "tokens/s" in done.stdout


def test_several_lengths_and_batches_are_a_table(lapidary, compare):
    flags = ("bench", "latency", "--preset", "tiny-e", "--device", "cpu", "--threads", "1", "--num-iters", "1",
             "--num-iters-warmup", "0", "--batch-size", "1,3", "--input-len", "8,24", "--output-len", "6",
             "--memory-bandwidth", "10")
    done = lapidary(*flags, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(row["input_len"], row["batch_size"]) for row in result["rows"]] == [(8, 1), (8, 3), (24, 1), (24, 3)]
    alone = json.loads(lapidary("bench", "latency", *TINY, "--memory-bandwidth", "10", "--json").stdout)
    assert set(alone) == (set(result) - {"rows"}) | set(result["rows"][0])
    for row in result["rows"]:
        assert row["output_len"] == 6 and 0 < row["num_steps"] <= 5
        assert row["prompt_tokens_per_s"] > 0 and row["decode_tokens_per_s"] > 0
    done = lapidary(*flags)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 4 and len({len(line) for line in lines}) == 1
    assert lines[-1].split("|")[1:4] == ["     3 ", "        24 ", "     6 "]
    assert lines[-1].rstrip("| ").endswith("%")
    done = compare(result, result)
    assert "batch 3, 24 in, 6 out median_ttft_ms" in done.stdout and "1.000" in done.stdout


def test_throughput_counts_all_tokens(lapidary, tmp_path):
    path = tmp_path / "throughput.json"
    done = lapidary("bench", "throughput", *TINY, "--num-prompts", "7", "--max-num-seqs", "3", "--json",
                    "--output-json", path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads(path.read_text())
    assert result["num_requests"] == 7
    assert result["num_input_tokens"] == 7 * 24 and result["num_output_tokens"] == 7 * 12
    assert result["total_num_tokens"] == 7 * 36
    assert result["tokens_per_second"] == pytest.approx(7 * 36 / result["elapsed_time"])
    assert result["output_tokens_per_second"] == pytest.approx(7 * 12 / result["elapsed_time"])


def test_simulated_drafts_are_accepted_as_often_as_asked(lapidary):
    done = lapidary("bench", "throughput", "--preset", "tiny-e", "--device", "cpu", "--threads", "1", "--input-len", "8",
                    "--output-len", "200", "--num-prompts", "8", "--spec-tokens", "3", "--spec-simulate-accept-length", "2.5",
                    "--json")
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stderr
    drafting = json.loads(done.stdout)["drafting"]
    assert drafting["accept_length"] == pytest.approx(2.5, abs=0.25)  # some 640 rounds, five standard errors
    refused = lapidary("bench", "latency", *TINY, "--spec-tokens", "2", "--spec-simulate-accept-length", "3.5")
    assert refused.returncode == 1 and "gives 1 to 3 tokens" in refused.stderr
    assert lapidary("serve", "--spec-simulate-accept-length", "2").returncode == 2


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_models_are_checked(lapidary, checkpoint, command):
    for flags, message in (((checkpoint, "--preset", "tiny-e"), "name one model"),
                           (("/nowhere",), "/nowhere"),
                           (("--preset", "tiny-e", "--input-len", "9999999"), "context")):
        done = lapidary("bench", command, *flags)
        assert done.returncode == 1, flags
        assert message in done.stderr
    assert lapidary("bench", command, "--preset", "none").returncode == 2


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_the_bundled_model_is_the_default(lapidary, command):
    done = lapidary("bench", command, "--device", "cpu", "--input-len", "8", "--output-len", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"].endswith("/pebble-e")
    assert "no MODEL was named" in done.stderr


def test_the_group_lists_its_commands(lapidary):
    done = lapidary("bench", "--help")
    assert done.returncode == 0
    for name in ("serve", "latency", "throughput", "kernels"):
        assert name in done.stdout
    assert lapidary("bench").returncode == 2
    assert lapidary("bench", "sideways").returncode == 2


@pytest.fixture
def compare(tools, tmp_path):
    def run(before, after, *flags):
        paths = []
        for name, result in (("before", before), ("after", after)):
            paths.append(tmp_path / f"{name}.json")
            paths[-1].write_text(result if isinstance(result, str) else json.dumps(result))
        return subprocess.run([sys.executable, tools / "compare_bench.py", *paths, *flags],
                              capture_output=True, text=True)

    return run


def test_objects_are_compared_by_key(compare):
    done = compare({"model": "a", "median_tpot_ms": 4.0, "completed": 8, "old": 1},
                   {"model": "b", "median_tpot_ms": 2.0, "completed": 8, "new": 1})
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["median_tpot_ms", "4", "2", "0.500"] in rows
    assert ["completed", "8", "8", "1.000"] in rows
    assert "differs: model: a -> b" in done.stdout
    assert "only before: old" in done.stdout and "only after: new" in done.stdout


def test_kernels_are_compared_by_name_and_shape(compare):
    before = [{"name": "gemv", "shape": "1x1536x6144", "us": 10, "gbps": 1000, "floor_share": 0.5},
              {"name": "gemv", "shape": "8x1536x6144", "us": 20}]
    after = [{"name": "gemv", "shape": "8x1536x6144", "us": 10},
             {"name": "gemv", "shape": "1x1536x6144", "us": 5, "gbps": 2000, "floor_share": 1.0}]
    done = compare(before, after, "--only", " us$")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["gemv", "1x1536x6144", "us", "10", "5", "0.500"] in rows
    assert ["gemv", "8x1536x6144", "us", "20", "10", "0.500"] in rows
    assert "gbps" not in done.stdout


def test_kernels_of_a_command_differ_by_rows_and_variant(compare):
    def result(us):
        return {"bench": "kernels", "model": "e4b", "device": "CUDA", "kernels": [
            {"name": "e4b o", "shape": "2048x2560", "variant": variant, "rows": rows, "us": us * rows}
            for rows in (1, 8) for variant in ("", "batch_invariant")]}
    done = compare(result(2.0), result(3.0))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["e4b", "o", "2048x2560", "rows", "8", "us", "16", "24", "1.500"] in rows
    assert ["e4b", "o", "2048x2560", "batch_invariant", "rows", "1", "us", "2", "3", "1.500"] in rows
    twice = result(2.0)
    twice["kernels"].append(dict(twice["kernels"][0]))
    assert "is there twice" in compare(twice, result(1.0)).stderr


def test_lines_of_rows_are_compared(compare):
    line = '{"name": "step", "shape": "e2b x%d @1000", "us": %d}\n'
    done = compare(line % (1, 2000) + line % (80, 4000), line % (1, 1000) + line % (80, 3000))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["step", "e2b", "x80", "@1000", "us", "4000", "3000", "0.750"] in rows


def test_another_implementations_times_become_the_baseline(compare, tmp_path):
    ours = {"bench": "kernels", "kernels": [{"name": "a", "shape": "s", "rows": 1, "us": 10.0},
                                            {"name": "b", "shape": "s", "rows": 1, "us": 10.0}]}
    theirs = {"bench": "kernels", "kernels": [{"name": "a", "shape": "s", "rows": 1, "us": 25.0,
                                               "implementation": "torch cudnn_attention"}]}
    merged = tmp_path / "merged.json"
    done = compare(ours, theirs, "--merge-baseline", merged)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(merged.read_text())["kernels"]
    assert (first["baseline"], first["baseline_us"], first["ratio"]) == ("torch cudnn_attention", 25.0, 2.5)
    assert "baseline" not in second
    assert compare({"a": 1}, {"a": 2}, "--merge-baseline", merged).returncode != 0


def test_serve_latency_and_throughput_results_are_compared(compare, lapidary, bench_serve, server, tmp_path):
    results = []
    for command in ("latency", "throughput"):
        done = lapidary("bench", command, *TINY, "--json")
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    results.append(bench_serve(server.url).result)
    for result in results:
        done = compare(result, result)
        assert done.returncode == 0, done.stderr
        assert "median_ttft_ms" in done.stdout and "only" not in done.stdout
    assert "differs: bench" in compare(results[0], results[1]).stdout


def test_kernels_need_a_gpu(lapidary):
    done = lapidary("bench", "kernels", "--device", "cpu")
    assert done.returncode == 1
    assert "times CUDA kernels" in done.stderr and done.stdout == ""
    done = lapidary("bench", "kernels", "--preset", "tiny-e", "--shapes", "nothing like this")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stdout == ""
    assert lapidary("bench", "kernels", "--preset", "none").returncode == 2


@pytest.mark.parametrize("before, after", [({}, {}), ({"a": 1}, []), ("{", {}), ([{"us": 1}], []),
                                           ("7", "7")])
def test_what_cannot_be_compared_is_an_error(compare, before, after):
    assert compare(before, after).returncode != 0
