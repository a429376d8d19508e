"""A random checkpoint that takes pictures and sounds."""

import json
import pathlib
import subprocess

GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"


def make_seeing_checkpoint(program, directory, **text_config):
    """The unified kind with the whole vocabulary, so that the placeholders have their tokens."""
    config = json.loads((GOLDENS / "media-unified.config.json").read_text())
    for key in list(config):
        if key.endswith("_token_id") or key.endswith("_token_index"):
            del config[key]
    config["text_config"] |= {"vocab_size": 262144} | text_config
    config["vision_config"]["mm_posemb_size"] = 64
    (directory / "config.json").write_text(json.dumps(config))
    subprocess.run([program, "synth", "--config", directory / "config.json", "--out", directory / "seeing"],
                   check=True, stderr=subprocess.DEVNULL)
    return directory / "seeing"
