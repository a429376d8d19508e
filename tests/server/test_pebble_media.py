"""The bundled models see and hear: every held-out question about drawn pictures and sounds is answered as transformers does."""

import base64
import concurrent.futures
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODELS = ROOT / "models"
REQUIRED_MODEL = "pebble-e"
REQUIRED_ACCURACY = 0.9  # of pebble-e, in every task
MAX_DIFFERENCES = 1


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "tools" / "pebble"))
    import media_evalset
    folder = tmp_path_factory.mktemp("drawn")
    media_evalset.write_files(folder)
    sys.path.pop(0)
    return folder


def part(path):
    data = base64.b64encode(path.read_bytes()).decode()
    if path.suffix == ".png":
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


@pytest.mark.parametrize("model", ["pebble-e", "pebble-dense"])
def test_pictures_and_sounds_are_answered_as_transformers_does(start, files, model):
    items = [json.loads(line) for line in (MODELS / "pebble-media-eval.jsonl").read_text().splitlines()]
    recorded = [json.loads(line) for line in (MODELS / f"{model}-media-answers.jsonl").read_text().splitlines()]
    assert [item["id"] for item in items] == [answer["id"] for answer in recorded] and len(items) == 150
    client = start(model=MODELS / model).client()

    def ask(item):
        content = [part(files / item["file"]), {"type": "text", "text": item["ask"]}]
        answer = client.chat.completions.create(model=model, temperature=0, max_tokens=24,
                                                messages=[{"role": "user", "content": content}])
        return answer.choices[0].message.content

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, items))
    right = {}
    for answer, item in zip(answers, items):
        right.setdefault(item["task"], []).append(answer == item["answer"])
    differing = [item["id"] for answer, item, other in zip(answers, items, recorded)
                 if answer != other["text"].removesuffix("<turn|>")]
    print(f"{model}: {sum(map(sum, right.values()))} of {len(items)} right, {len(items) - len(differing)} as recorded")
    if model == REQUIRED_MODEL:
        assert all(sum(found) >= REQUIRED_ACCURACY * len(found) for found in right.values()), right
    assert len(differing) <= MAX_DIFFERENCES, differing
