"""A target with its towers: one checkpoint of the kind Gemma 4 has, text weights as they were.

    python3 add_towers.py MODEL MODEL_DIR TOWERS_DIR OUT_DIR

MODEL_DIR holds the text model (or an earlier result of this); TOWERS_DIR what train_towers.py wrote. The file's tensors are
renamed as in Gemma 4's own (model.language_model.*), config.json names the towers, processor_config.json how many soft
tokens a picture has.
"""
import argparse
import json
import os
import shutil

import checkpoint
from tower_shapes import TOWERS, media_config, processor_config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(TOWERS))
    parser.add_argument("folder")
    parser.add_argument("towers")
    parser.add_argument("out")
    args = parser.parse_args()
    from safetensors.torch import load_file, save_file
    tensors = {f"model.language_model.{name}": value for name, value in checkpoint.text_tensors(args.folder).items()}
    for kind in ("vision", "audio"):
        tensors.update(load_file(os.path.join(args.towers, f"{args.model}-{kind}.safetensors")))
    if args.out != args.folder:
        shutil.copytree(args.folder, args.out, dirs_exist_ok=True)
    save_file(tensors, os.path.join(args.out, "model.safetensors"), metadata={"format": "pt"})
    for name, value in (("config.json", media_config(args.model)), ("processor_config.json", processor_config(args.model))):
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
    shutil.copy(os.path.join(checkpoint.HERE, "tokenizer.json"), os.path.join(args.out, "tokenizer.json"))


if __name__ == "__main__":
    main()
