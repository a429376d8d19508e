"""Models that are damaged, cut off or something else: a sentence and exit code 1, never a signal."""

import json
import shutil
import signal
import subprocess

from target import ANSWER_SECONDS, rounds


def run(program, *arguments):
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, timeout=ANSWER_SECONDS)
    assert result.returncode in (0, 1), (arguments, signal.Signals(-result.returncode).name if result.returncode < 0
                                         else result.returncode, result.stderr[-500:])
    if result.returncode == 1:
        assert 0 < len(result.stderr) < 4000, result.stderr[:4000]


def damage(draw, data):
    data = bytearray(data)
    kind = draw.randrange(5)
    if kind == 0:
        return bytes(data[:draw.randrange(len(data) + 1)])
    if kind == 1:
        return draw.randbytes(draw.randrange(5000))
    for _ in range(draw.randint(1, 20)):
        place = draw.randrange(min(len(data), 4000) if kind == 2 else len(data))
        data[place] = draw.randrange(256)
    if kind == 4:
        place = draw.randrange(len(data))
        data[place:place] = draw.choice([b"[" * 100_000, b"9" * 500, b"\0" * 64, b'{"a":' * 5000])
    return bytes(data)


ODD_VALUES = [None, -1, 0, 1, 2**31, 2**63, 1e300, 0.5, "x", [], {}, True, [1, 2], "full_attention"]


def odd_config(draw, config):
    config = json.loads(json.dumps(config))
    for _ in range(draw.randint(1, 3)):
        node = config.get("text_config", config) if draw.random() < 0.8 else config
        node[draw.choice(sorted(node))] = draw.choice(ODD_VALUES)
    return json.dumps(config).encode()


def test_damaged_models(program, checkpoint, tmp_path):
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    config = json.loads(files["config.json"])
    number = 0
    for draw in rounds("files"):
        for _ in range(25):
            number += 1
            model = tmp_path / f"model{number}"
            model.mkdir()
            for name, data in files.items():
                (model / name).write_bytes(data)
            name = draw.choice(["config.json", *sorted(files)])
            data = odd_config(draw, config) if name == "config.json" and draw.random() < 0.6 else damage(draw, files[name])
            (model / name).write_bytes(data)
            if draw.random() < 0.1:
                (model / name).unlink()
            prompt = draw.choice([["generate", model, "--prompt", "Hello"], ["generate", model, "--chat", "Hello"]])
            run(program, *prompt, "--max-tokens", "2", "--threads", "1")
            shutil.rmtree(model)


def test_what_is_no_model(program, tmp_path):
    draw = next(rounds("no model"))
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"")
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(b"GGUF" + draw.randbytes(4000))
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (empty, noise, folder, tmp_path / "missing", "/dev/null", "/proc/self/mem"):
        for command in ("generate", "inspect", "plan", "tokenize"):
            run(program, command, path, *(["--prompt", "x"] if command == "generate" else []),
                *(["--text", "x"] if command == "tokenize" else []))
