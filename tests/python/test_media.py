"""Pictures and sounds in conversations."""

import base64
import json
import pathlib
import subprocess

import PIL.Image
import pytest
from lapidary import LLM, SamplingParams
from seeing_checkpoint import make_seeing_checkpoint

FILES = pathlib.Path(__file__).resolve().parents[1] / "data" / "media"
PICTURE = FILES / "palette.png"
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def checkpoint(program, tmp_path_factory):
    return make_seeing_checkpoint(program, tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def seeing(checkpoint):
    with LLM(checkpoint, device="cpu", max_model_len=2048, num_threads=2) as llm:
        yield llm


def ask(llm, *parts, **options):
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]
    return llm.chat(messages, GREEDY, use_tqdm=False, **options)[0]


def url(address, kind="image_url"):
    return {"type": kind, kind: {"url": address}}


def test_every_way_to_give_a_picture_gives_the_same_answer_as_the_command(seeing, checkpoint, program):
    data = base64.b64encode(PICTURE.read_bytes()).decode()
    parts = [url("data:image/png;base64," + data), url(PICTURE.as_uri()), {"type": "image", "image": PICTURE},
             {"type": "image", "image": str(PICTURE)}, {"type": "image", "image": PICTURE.read_bytes()},
             {"type": "image", "image": PIL.Image.open(PICTURE)},
             {"type": "image_pil", "image_pil": PIL.Image.open(PICTURE)}]
    answers = [ask(seeing, part) for part in parts]
    command = subprocess.run(
        [program, "generate", checkpoint, "--chat", "What is it?", "--image", PICTURE, "--temperature", "0",
         "--max-tokens", "8", "--json"], check=True, capture_output=True)
    expected = json.loads(command.stdout)["output_ids"]
    assert [answer.outputs[0].token_ids for answer in answers] == [expected] * len(parts)


def test_pictures_and_sounds_take_their_tokens(seeing):
    def num_tokens(*parts, **options):
        return len(ask(seeing, *parts, **options).prompt_token_ids)

    plain = num_tokens()
    assert 140 <= num_tokens({"type": "image", "image": PICTURE}) - plain - 2 <= 280
    fewer = num_tokens({"type": "image", "image": PICTURE}, mm_processor_kwargs={"max_soft_tokens": 70})
    assert 35 <= fewer - plain - 2 <= 70
    sounds = [{"type": "audio", "audio": FILES / "short.wav"}, url((FILES / "short.wav").as_uri(), "audio_url")]
    assert [num_tokens(sound) - plain - 2 for sound in sounds] == [3, 3]  # 1500 samples, 640 each


def test_a_video_is_its_frames_behind_their_times(seeing):
    frames = [PICTURE, PICTURE.read_bytes(), PICTURE.as_uri()]
    by_rate = ask(seeing, {"type": "video", "video": frames, "fps": 0.5})
    timed = [{"image": PIL.Image.open(PICTURE), "timestamp": 0}, {"url": PICTURE.as_uri(), "timestamp": 2.5},
             {"image": PICTURE, "timestamp": 4}]
    by_time = ask(seeing, {"type": "video", "video": timed})
    assert by_time.prompt_token_ids == by_rate.prompt_token_ids
    assert by_time.outputs[0].token_ids == by_rate.outputs[0].token_ids
    assert by_time.prompt_token_ids.count(258884) == 3 * 63  # 9 x 7 cells, of at most 70
    with pytest.raises(ValueError, match="list of frames"):
        ask(seeing, {"type": "video", "video": "clip.mp4"})


def test_what_cannot_be_seen_is_refused_with_a_sentence(seeing):
    with pytest.raises(ValueError, match="nowhere.png cannot be read: No such file"):
        ask(seeing, {"type": "image", "image": "nowhere.png"})
    with pytest.raises(ValueError, match="path or the bytes of a file, or one of PIL's images as its \"image\", got int"):
        ask(seeing, {"type": "image", "image": 5})
    with pytest.raises(ValueError, match="content.0.: the image is neither JPEG nor PNG nor WebP"):
        ask(seeing, {"type": "image", "image": b"no picture"})
    with pytest.raises(ValueError, match="other addresses are not fetched"):
        ask(seeing, url("https://example.com/picture.png"))
    with pytest.raises(ValueError, match="a prompt takes 1 at most"):
        ask(seeing, *[{"type": "audio", "audio": FILES / "short.wav"}] * 2)
    with pytest.raises(ValueError, match="70, 140, 280, 560 or 1120"):
        ask(seeing, {"type": "image", "image": PICTURE}, mm_processor_kwargs={"max_soft_tokens": 100})


def test_a_text_may_hold_pictures_and_sounds(seeing):
    parts = [{"type": "image", "image": PICTURE}, {"type": "text", "text": "What is it?"}]
    text = seeing.render([{"role": "user", "content": parts}])
    prompt = {"prompt": text, "multi_modal_data": {"image": PICTURE}}
    chat, [output] = ask(seeing, parts[0]), seeing.generate(prompt, GREEDY)
    assert output.prompt_token_ids == chat.prompt_token_ids
    assert output.outputs[0].token_ids == chat.outputs[0].token_ids
    [by_ids] = seeing.generate(
        {"prompt_token_ids": seeing.encode(text), "multi_modal_data": {"image": [PIL.Image.open(PICTURE)]}}, GREEDY)
    assert by_ids.prompt_token_ids == chat.prompt_token_ids
    [coarse] = seeing.generate({**prompt, "mm_processor_kwargs": {"max_soft_tokens": 70}}, GREEDY)
    assert len(coarse.prompt_token_ids) < len(output.prompt_token_ids)
    heard = [seeing.generate({"prompt": "Hear: <|audio|>", "multi_modal_data": {"audio": sound}}, GREEDY)[0]
             for sound in (FILES / "short.wav", ([0.0] * 1500, 16000))]
    assert len(heard[0].prompt_token_ids) == len(heard[1].prompt_token_ids)
    with pytest.raises(ValueError, match="0 occurrences of the image token"):
        seeing.generate({"prompt": "nothing", "multi_modal_data": {"image": PICTURE}}, GREEDY)


def test_limits_are_the_callers(checkpoint):
    with LLM(checkpoint, device="cpu", max_model_len=2048, num_threads=2, limit_mm_per_prompt={"audio": 2}) as llm:
        ask(llm, *[{"type": "audio", "audio": FILES / "short.wav"}] * 2)
        with pytest.raises(ValueError, match="takes no images"):
            ask(llm, {"type": "image", "image": PICTURE})
        with pytest.raises(ValueError, match="takes no videos"):
            ask(llm, {"type": "video", "video": [PICTURE]})
    with pytest.raises(ValueError, match="kinds that are not known: smell"):
        LLM(checkpoint, device="cpu", limit_mm_per_prompt={"smell": 1})
