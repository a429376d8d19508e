"""Runs lm-eval and guidellm against our server as their users do, and looks at what they say.

    python3 tools/harness_runs.py --lapidary build/lapidary

Each needs its own packages (pip install "lm-eval[api]" transformers, pip install guidellm; 0.4.13 and 0.8.1 were
tried), in any environment whose bin directory is in PATH; where one is not there, that is said and the other runs.
Nothing is loaded from elsewhere: the model and its tokenizer are the bundled pebble-e, the questions are written here.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))
from server_process import ServerProcess  # noqa: E402

MODEL = REPOSITORY / "models" / "pebble-e"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none", "TOKENIZERS_PARALLELISM": "false"}

SUMS = """task: pebble_sums
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "Calculate {{a}} x {{b}}."
doc_to_target: "{{a}} * {{b}} = {{product}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 60, temperature: 0}
metric_list: [{metric: exact_match}]
"""

# One answer is a word that follows, the other letters that never do.
ENDINGS = """task: pebble_endings
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "I am Pebble, a very small"
doc_to_choice: [" language model", " qzxv qzxv qzxv"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env={**os.environ, **OFFLINE})
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return done


def lm_eval(server, work):
    """Questions over chat completions, likelihoods over completions with echo and logprobs."""
    rows = work / "rows.jsonl"
    rows.write_text("".join(json.dumps({"a": a, "b": b, "product": a * b}) + "\n" for a in (20, 70) for b in (3, 4)))
    tasks = work / "tasks"
    tasks.mkdir()
    for name, text in (("pebble_sums", SUMS), ("pebble_endings", ENDINGS)):
        (tasks / f"{name}.yaml").write_text(text % rows)
    common = f"model=pebble-e,num_concurrent=4,max_retries=1,tokenized_requests=False,tokenizer={MODEL}"
    for kind, task, path, flags in (
            ("local-chat-completions", "pebble_sums", "chat/completions", ["--apply_chat_template"]),
            ("local-completions", "pebble_endings", "completions", [])):
        out = work / kind
        run("lm_eval", "--model", kind, "--model_args", f"{common},base_url={server.url}/v1/{path}", "--tasks", task,
            "--include_path", tasks, "--output_path", out, *flags)
        [report] = out.rglob("results_*.json")
        scores = json.loads(report.read_text())["results"][task]
        score = next(value for name, value in scores.items() if name.startswith(("exact_match,", "acc,")))
        print(f"lm-eval {kind} {task}: {score}")
        if score != 1.0:
            sys.exit(f"every answer should be right: {scores}")


def guidellm(server, work):
    """Its own load over each API that it speaks."""
    report = work / "report.json"
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        done = run("guidellm", "run", "--backend",
                   f"kind=openai_http,target={server.url},model=pebble-e,request_format={path}",
                   "--tokenizer", f"kind=huggingface_auto,model={MODEL}",
                   "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
                   "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12",
                   "--output", f"kind=json,path={report}", "--disable-console-interactive")
        totals = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
        print(f"guidellm {path}: {totals}")
        if totals["errored"] or totals["successful"] != 12:
            sys.exit(f"every request should succeed:\n{done.stdout[-3000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lapidary", default=REPOSITORY / "build" / "lapidary", help="the program")
    arguments = parser.parse_args()
    server = ServerProcess(str(arguments.lapidary), str(MODEL), "--device", "cpu")
    try:
        for program, check in (("lm_eval", lm_eval), ("guidellm", guidellm)):
            if shutil.which(program) is None:
                print(f"{program} is not installed: skipped")
                continue
            with tempfile.TemporaryDirectory() as work:
                check(server, pathlib.Path(work))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
