"""Flags from a file, from the environment, from the command line: which wins, and what is refused."""

import pathlib
import re
import subprocess

import httpx
import pytest

from server_process import ServerProcess

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def names(server):
    return [model["id"] for model in httpx.get(server.url + "/v1/models").json()["data"]]


def write(folder, text):
    path = folder / "serve.yaml"
    path.write_text(text)
    return str(path)


def test_command_line_then_environment_then_file(start, tmp_path, monkeypatch):
    config = write(tmp_path, "served-model-name: [file-one, file-two]\nmetrics-prefix: from_file\n"
                             "no-overlap: true\ncheck-kv: false\nmax_num_seqs: 3\n# nothing else\n")
    server = start("--config", config)
    assert names(server) == ["file-one", "file-two"]
    assert "up to 3 sequences" in "".join(server.log)
    assert "from_file:" in httpx.get(server.url + "/metrics").text
    assert server.stop() == 0

    monkeypatch.setenv("LAPIDARY_METRICS_PREFIX", "from_environment")
    monkeypatch.setenv("LAPIDARY_SERVED_MODEL_NAME", "environment")
    server = start("--config", config, "--served-model-name", "flag")
    assert names(server) == ["flag"]
    assert "from_environment:" in httpx.get(server.url + "/metrics").text
    assert "up to 3 sequences" in "".join(server.log)
    assert server.stop() == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_names_and_sizes_are_written_as_people_do(request, checkpoint, is_first):
    named = ["--served-model-name", "one", "two"]
    arguments = [str(checkpoint), *named] if is_first else ["--max-queue=9", *named, str(checkpoint)]
    server = ServerProcess(request.config.getoption("--lapidary"), arguments[0], "--max-model-len", "1k",
                           "--kv-cache-memory-bytes", "16MB", "--max-body-bytes", "2KiB", *arguments[1:])
    try:
        assert names(server) == ["one", "two"]
        models = httpx.get(server.url + "/v1/models").json()["data"]
        assert {model["max_model_len"] for model in models} == {1000}
        too_large = httpx.post(server.url + "/tokenize", json={"prompt": "x" * 2048})
        assert too_large.status_code == 413 and "2048 bytes" in too_large.text
    finally:
        assert server.stop() == 0


def test_the_model_may_be_in_the_file(request, checkpoint, tmp_path):
    config = write(tmp_path, f"model: {checkpoint}\nport: 0\nmetrics-prefix: '9'\n")
    result = subprocess.run([request.config.getoption("--lapidary"), "serve", "--config", config],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "--metrics-prefix '9'" in result.stderr


def test_the_model_may_be_in_the_environment(request, checkpoint, tmp_path, monkeypatch):
    config = write(tmp_path, f"model: {checkpoint}\nport: 0\n")
    monkeypatch.setenv("LAPIDARY_MODEL", "/no/such/model-of-environment")

    def refusal(*arguments):
        result = subprocess.run([request.config.getoption("--lapidary"), *arguments], capture_output=True, text=True,
                                timeout=60)
        assert result.returncode == 1
        return result.stderr

    assert "/no/such/model-of-environment" in refusal("serve", "--config", config)
    assert "/no/such/model-of-environment" in refusal("generate", "--prompt", "Hello")
    assert "/no/such/model-of-line" in refusal("serve", "/no/such/model-of-line", "--config", config)


@pytest.mark.parametrize("text,words", [
    ("max-modell-len: 5", ["unknown key 'max-modell-len'", "nearest is 'max-model-len'"]),
    ("max_num_sqs: 5", ["unknown key 'max_num_sqs'", "nearest is 'max-num-seqs'"]),
    ("port: 1\nport: 2", ["'port' is there twice"]),
    ("max-queue: 1\nmax_queue: 2", ["'max_queue' is there twice"]),
    ("config: x", ["unknown key 'config'"]),
    ("help: x", ["unknown key 'help'"]),
    ("port: eighty", ["'port'"]),
    ("port: 99999", ["'port'", "65535"]),
    ("port: [1, 2]", ["'port': takes one value"]),
    ("port: {a: 1}", ["'port': must be a value or a list"]),
    ("load-format: gguf", ["'load-format'"]),
    ("just text", ["key: value"]),
    ("- a\n- b", ["key: value"]),
    ("a: [1", ["not valid YAML"]),
    ("[a]: 1", ["a key must be a flag's name"]),
])
def test_bad_files_are_refused_with_the_key(request, checkpoint, tmp_path, text, words):
    config = write(tmp_path, text)
    result = subprocess.run([request.config.getoption("--lapidary"), "serve", str(checkpoint), "--config", config],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    for word in [config, *words]:
        assert word in result.stderr
    assert "loading" not in result.stderr


def test_missing_file(request, tmp_path):
    result = subprocess.run([request.config.getoption("--lapidary"), "serve", "--config",
                             str(tmp_path / "nothing.yaml")], capture_output=True, text=True, timeout=60)
    assert result.returncode != 0 and "nothing.yaml" in result.stderr


def test_every_key_of_the_example_is_a_flag(request):
    help_text = subprocess.run([request.config.getoption("--lapidary"), "serve", "--help"], capture_output=True,
                               text=True).stdout
    keys = re.findall(r"^([a-z-]+):", (SOURCE / "deploy" / "serve.yaml").read_text(), re.MULTILINE)
    assert "model" in keys and len(keys) > 5
    for key in keys:
        assert key == "model" or f"--{key} " in help_text
    for group in ("Model:", "Scheduling and memory:", "HTTP:", "LAPIDARY_MAX_MODEL_LEN", "--config"):
        assert group in help_text
