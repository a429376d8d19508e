"""Images and audio in chat messages."""

import base64
import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import wave

import httpx
import openai
import pytest
from media_files import large_jpeg
from seeing_checkpoint import make_seeing_checkpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ROOT / "data" / "media"


def data_uri(name):
    kind = "image/png" if name.endswith("png") else "image/jpeg"
    return f"data:{kind};base64,{base64.b64encode((FILES / name).read_bytes()).decode()}"


def image(name="turned.jpg", **options):
    return {"type": "image_url", "image_url": {"url": data_uri(name), **options}}


def sound(name="short.wav"):
    data = base64.b64encode((FILES / name).read_bytes()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def text(words):
    return {"type": "text", "text": words}


@pytest.fixture(scope="module")
def seeing_checkpoint(request, tmp_path_factory):
    return make_seeing_checkpoint(request.config.getoption("--lapidary"), tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def seeing(start, seeing_checkpoint):
    return start(model=seeing_checkpoint)


def ask(server, *parts, **options):
    client = server.client()
    return client.chat.completions.create(model="seeing", temperature=0, max_tokens=8,
                                          messages=[{"role": "user", "content": list(parts)}], **options)


def test_images_and_sounds_are_counted_and_seen(seeing):
    plain = ask(seeing, text("Hello"))
    seen = ask(seeing, image(), text("Hello"))
    # Two tokens are around them.
    num_tokens = seen.usage.prompt_tokens - plain.usage.prompt_tokens - 2
    assert 140 <= num_tokens <= 280
    low = ask(seeing, image(detail="low"), text("Hello"))
    assert 35 <= low.usage.prompt_tokens - plain.usage.prompt_tokens - 2 <= 70
    fine = ask(seeing, image(), text("Hello"), extra_body={"mm_processor_kwargs": {"max_soft_tokens": 560}})
    assert fine.usage.prompt_tokens > seen.usage.prompt_tokens
    heard = ask(seeing, sound(), text("Hello"))
    assert heard.usage.prompt_tokens - plain.usage.prompt_tokens - 2 == 3  # 1500 samples, 640 each


def test_the_answer_is_that_of_generate(seeing, seeing_checkpoint, request):
    result = subprocess.run(
        [request.config.getoption("--lapidary"), "generate", seeing_checkpoint, "--chat", "What is it?", "--image",
         FILES / "turned.jpg", "--temperature", "0", "--max-tokens", "8", "--json"],
        check=True, capture_output=True)
    answer = json.loads(result.stdout)
    seen = ask(seeing, image(), text("What is it?"))
    assert seen.choices[0].message.content == answer["text"]
    assert seen.usage.prompt_tokens == len(answer["prompt_ids"])


def test_the_same_image_is_found_again_and_another_is_not(seeing):
    first = ask(seeing, image("turned.jpg", detail="low"), text("Which one?"))
    again = ask(seeing, image("turned.jpg", detail="low"), text("Which one?"))
    assert again.usage.prompt_tokens_details.cached_tokens > 40
    assert again.choices[0].message.content == first.choices[0].message.content
    other = ask(seeing, image("progressive.jpg", detail="low"), text("Which one?"))
    assert other.usage.prompt_tokens_details.cached_tokens < 10


def test_the_younger_apis_see_the_same(seeing):
    seen = ask(seeing, image(), text("What is it?"))
    asked = {"model": "seeing", "temperature": 0}
    parts = [{"type": "input_image", "image_url": data_uri("turned.jpg"), "detail": "auto"},
             {"type": "input_text", "text": "What is it?"}]
    response = seeing.client().responses.create(**asked, max_output_tokens=8, input=[{"role": "user", "content": parts}])
    assert response.usage.input_tokens == seen.usage.prompt_tokens
    assert response.output_text == seen.choices[0].message.content
    source = {"type": "base64", "media_type": "image/jpeg", "data": data_uri("turned.jpg").split(",")[1]}
    message = seeing.post("/v1/messages", json={**asked, "max_tokens": 8, "messages": [
        {"role": "user", "content": [{"type": "image", "source": source}, text("What is it?")]}]}).json()
    usage = message["usage"]  # what was cached comes apart
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == seen.usage.prompt_tokens
    assert message["content"][0]["text"] == seen.choices[0].message.content
    for source in ({"type": "file", "file_id": "f"}, {"type": "base64", "data": "%"}, {"type": "url", "url": "http://x/y.png"}, 7):
        refused = seeing.post("/v1/messages", json={**asked, "max_tokens": 8, "messages": [
            {"role": "user", "content": [{"type": "image", "source": source}]}]})
        assert refused.status_code == 400, source


def test_conversations_count_as_memory_until_their_answers_are_stored(start, seeing_checkpoint):
    server = start("--max-request-memory", "4MB", "--max-num-seqs", "1", model=seeing_checkpoint)
    large_file = (FILES / "turned.jpg").read_bytes() + bytes(450_000)
    padded = {"type": "input_image", "image_url": f"data:image/jpeg;base64,{base64.b64encode(large_file).decode()}"}

    def respond(store):
        body = {"input": [{"role": "user", "content": [padded]}], "store": store, "stream": True, "ignore_eos": True,
                "max_output_tokens": 300}
        return httpx.stream("POST", server.url + "/v1/responses", json=body, timeout=60)

    for store in (False, True):
        with contextlib.ExitStack() as streams:
            statuses = [streams.enter_context(respond(store)).status_code for _ in range(8)]
        assert (503 in statuses) == store, statuses
        server.wait_until_idle(60)


@pytest.fixture(scope="module")
def with_files(start, seeing_checkpoint, tmp_path_factory):
    """A server that reads files of a directory, and that directory."""
    directory = tmp_path_factory.mktemp("media") / "allowed"
    directory.mkdir()
    (directory / "a picture.jpg").write_bytes((FILES / "turned.jpg").read_bytes())
    (directory / "link.jpg").symlink_to(directory / "a picture.jpg")
    outside = directory.parent / "allowed-not"  # begins with the same letters
    outside.mkdir()
    (outside / "b.jpg").write_bytes((FILES / "turned.jpg").read_bytes())
    (directory / "out.jpg").symlink_to(outside / "b.jpg")
    return start("--allowed-local-media-path", str(directory), model=seeing_checkpoint), directory


def file_image(path):
    return {"type": "image_url", "image_url": {"url": f"file://{path}", "detail": "low"}}


def test_allowed_files_are_read(with_files):
    server, directory = with_files
    sent = ask(server, image("turned.jpg", detail="low"), text("Which one?"))
    for name in ("a%20picture.jpg", "link.jpg", "../allowed/link.jpg"):
        named = ask(server, file_image(directory / name), text("Which one?"))
        assert named.choices[0].message.content == sent.choices[0].message.content


@pytest.mark.parametrize("name", ["missing.jpg", "", "out.jpg", "../allowed-not/b.jpg", "%2e%2e/allowed-not/b.jpg"])
def test_other_files_are_not_read(with_files, name):
    server, directory = with_files
    with pytest.raises(openai.BadRequestError, match="no such file"):
        ask(server, file_image(f"{directory}/{name}"), text("Which one?"))


def test_without_a_directory_no_file_is_read(seeing):
    with pytest.raises(openai.BadRequestError, match="--allowed-local-media-path"):
        ask(seeing, file_image(FILES / "turned.jpg"), text("Which one?"))


def test_encoded_media_are_counted(seeing):
    def counts():
        return [seeing.metric(f"mm_cache_{name}") for name in ("queries_total", "hits_total", "usage_bytes")]

    queries, hits, size = counts()
    ask(seeing, image("alpha.png", detail="low"), text("Again"))
    ask(seeing, image("alpha.png", detail="low"), text("And again"))
    after = counts()
    assert after[0] == queries + 2
    assert hits + 1 <= after[1] <= hits + 2  # another test may have shown it before
    assert after[2] >= max(size, 1)


def test_speech_is_transcribed(seeing):
    client = seeing.client()
    with open(FILES / "short.wav", "rb") as file:
        whole = client.audio.transcriptions.create(model="seeing", file=file, language="en", prompt="Before that.")
    assert whole.usage.input_tokens > 20 and whole.usage.output_tokens > 0
    # 1500 samples are 0.09 s, which leave room for 34 tokens.
    assert whole.usage.output_tokens <= 34
    chat = ask(seeing, sound(), text("Transcribe this speech, whose language is 'en'. Answer with the transcription "
                                     "alone, without line breaks. It follows upon this text: Before that."))
    assert whole.text.startswith(chat.choices[0].message.content)
    with open(FILES / "short.wav", "rb") as file:
        events = list(client.audio.transcriptions.create(model="seeing", file=file, language="en",
                                                         prompt="Before that.", stream=True))
    assert events[-1].type == "transcript.text.done" and events[-1].text == whole.text
    assert "".join(event.delta for event in events[:-1]) == whole.text


def transcribe(server, seconds=None, **fields):
    """Of short.wav, or of so many seconds of silence."""
    file = (FILES / "short.wav").read_bytes()
    if seconds is not None:
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as recording:
            recording.setparams((1, 2, 16000, 0, "NONE", ""))
            recording.writeframes(bytes(2 * int(16000 * seconds)))
        file = buffer.getvalue()
    response = server.post("/v1/audio/transcriptions", data={"model": "seeing", **fields}, files={"file": file})
    assert response.status_code == 200, response.text
    return response


def test_transcriptions_come_in_every_format(seeing):
    text = transcribe(seeing, language="en").json()["text"]
    plain = transcribe(seeing, response_format="text", language="en")
    assert (plain.headers["content-type"], plain.text) == ("text/plain; charset=utf-8", text + "\n")
    verbose = transcribe(seeing, response_format="verbose_json", language="en",
                         **{"timestamp_granularities[]": "segment"}).json()
    assert (verbose["task"], verbose["language"], verbose["text"]) == ("transcribe", "en", text)
    assert verbose["duration"] == 1500 / 16000
    [segment] = verbose["segments"]
    assert (segment["start"], segment["end"], segment["text"]) == (0, verbose["duration"], text)
    cue = text.replace("\n", " ").replace("\r", " ")
    assert transcribe(seeing, response_format="srt", language="en").text == f"1\n00:00:00,000 --> 00:00:00,094\n{cue}\n\n"
    vtt = transcribe(seeing, response_format="vtt", language="en")
    assert vtt.headers["content-type"] == "text/vtt; charset=utf-8"
    cue = cue.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert vtt.text == f"WEBVTT\n\n00:00:00.000 --> 00:00:00.094\n{cue}\n\n"


def test_openais_client_reads_every_format(seeing):
    client = seeing.client()
    for format in ("text", "srt", "vtt"):
        with open(FILES / "short.wav", "rb") as file:
            answer = client.audio.transcriptions.create(model="seeing", file=file, response_format=format)
        assert isinstance(answer, str)
    with open(FILES / "short.wav", "rb") as file:
        verbose = client.audio.transcriptions.create(model="seeing", file=file, response_format="verbose_json")
    assert verbose.segments[0].end == verbose.duration


def test_a_transcription_is_no_longer_than_what_is_said(start, seeing_checkpoint, tmp_path):
    path = tmp_path / "seeing"
    shutil.copytree(seeing_checkpoint, path)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((path / name).read_text())
        config["eos_token_id"] = []
        (path / name).write_text(json.dumps(config))
    server = start(model=path)
    for seconds, num_tokens in ((0.4, 42), (2, 82)):
        assert transcribe(server, seconds).json()["usage"]["output_tokens"] == num_tokens


@pytest.mark.parametrize("fields, words", [
    ({"model": "seeing"}, "multipart/form-data"),
    ({"model": "seeing", "files": {"sound": b"RIFF"}}, "no field 'file'"),
    ({"model": "seeing", "files": {"file": b"hello"}}, "audio file cannot be read"),
    ({"model": "seeing", "response_format": "diarized_json", "files": {"file": b"hello"}}, "response_format"),
    ({"model": "seeing", "response_format": "srt", "stream": "true", "files": {"file": b"hello"}}, "must be json"),
    ({"model": "seeing", "timestamp_granularities[]": "word", "files": {"file": b"hello"}}, "when each word"),
    ({"model": "seeing", "temperature": "warm", "files": {"file": b"hello"}}, "temperature"),
    ({"model": "another", "files": {"file": b"hello"}}, "another"),
])
def test_bad_transcription_requests_are_refused(seeing, fields, words):
    files = fields.pop("files", None)
    response = seeing.post("/v1/audio/transcriptions", data=fields, files=files)
    assert response.status_code in (400, 404)
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("part, words", [
    ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "data: URI"),
    ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "base64"),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}}, "base64"),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}, "neither JPEG nor PNG"),
    ({"type": "image_url", "image_url": {}}, "url"),
    ({"type": "image_url", "image_url": {"url": "data:;base64,", "detail": "huge"}}, "detail"),
    ({"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}, "audio file cannot be read"),
    ({"type": "input_audio"}, "input_audio"),
])
def test_bad_parts_are_refused_and_the_rest_goes_on(seeing, part, words):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(seeing, part, text("Hello"))
    assert words in refused.value.message
    assert ask(seeing, text("Hello")).choices[0].message.content is not None


def test_text_is_answered_though_the_audio_tower_has_another_shape(start, seeing_checkpoint, request, tmp_path):
    path = tmp_path / "seeing"
    shutil.copytree(seeing_checkpoint, path)
    config = json.loads((path / "config.json").read_text())
    config["audio_config"]["output_proj_dims"] = 7
    (path / "config.json").write_text(json.dumps(config))
    done = subprocess.run([request.config.getoption("--lapidary"), "generate", path, "--chat", "Hello", "--max-tokens", "2"],
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    server = start(model=path)
    assert ask(server, text("Hello")).choices[0].message.content is not None
    assert ask(server, image(), text("Hello")).usage.prompt_tokens > 100, "it still sees"
    with pytest.raises(openai.BadRequestError, match="takes no audio here: .*output_proj_dims differs"):
        ask(server, sound(), text("Hello"))


def frames(*names, **fields):
    return {"type": "video", "video": [data_uri(name) for name in names], **fields}


def test_a_video_is_its_frames_behind_their_times(seeing):
    def prompt_tokens(*parts):
        return ask(seeing, *parts, text("Hello")).usage.prompt_tokens

    one = prompt_tokens(frames("turned.jpg"))
    # Whatever the rest costs, the second frame costs what the first did.
    second = prompt_tokens(frames("turned.jpg", "turned.jpg")) - one
    assert 35 <= second <= 70 + 12  # tokens, a time and what is around them
    assert prompt_tokens(frames(*["turned.jpg"] * 9)) - one == 8 * second
    for count in (32, 40):  # too long for this server, which says how long
        with pytest.raises(openai.BadRequestError, match=f"the prompt has {one + 31 * second} "):
            prompt_tokens(frames(*["turned.jpg"] * count))
    timed = [{"url": data_uri(name), "timestamp": seconds} for name, seconds in (("turned.jpg", 0), ("progressive.jpg", 2.5))]
    answers = [ask(seeing, part, image("alpha.png", detail="low"), text("And then?")) for part in (
        frames("turned.jpg", "progressive.jpg", fps=0.5), {"type": "video", "video": timed},
        {"type": "video_url", "video_url": {"fps": 0.4, "url": "data:video/jpeg;base64," + ",".join(
            data_uri(name).partition(",")[2] for name in ("turned.jpg", "progressive.jpg"))}})]
    assert len({(answer.choices[0].message.content, answer.usage.prompt_tokens) for answer in answers}) == 1
    assert answers[-1].usage.prompt_tokens_details.cached_tokens > 100  # the same frames at the same times
    later = ask(seeing, frames("turned.jpg", "progressive.jpg", fps=0.01), image("alpha.png", detail="low"), text("And then?"))
    assert later.usage.prompt_tokens_details.cached_tokens < answers[-1].usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("part, words", [
    ({"type": "video"}, "must be a list of frames"),
    ({"type": "video", "video": []}, "must be a list of frames"),
    ({"type": "video", "video": [5]}, "video[0] must be an image's URL"),
    ({"type": "video", "video": ["data:;base64,aGVsbG8="]}, "video[0]: the image is neither JPEG nor PNG"),
    ({"type": "video", "video": ["data:;base64,", "x"]}, "video[1] must be http(s)"),
    ({"type": "video", "video": ["data:;base64,"], "fps": 0}, "fps must be a number"),
    ({"type": "video", "video": [{"url": "data:;base64,", "timestamp": -1}]}, "timestamp must be a number"),
    ({"type": "video", "video": [{"url": "data:;base64,", "timestamp": 2}, {"url": "data:;base64,", "timestamp": 1}]},
     "must not go back"),
    ({"type": "video", "video": ["data:;base64,", {"url": "data:;base64,", "timestamp": 1}]}, "either all frames"),
    ({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}, "send their frames as"),
    ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "send their frames as"),
    ({"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,AAAA,*"}}, "frame 1: "),
    ({"type": "video_url"}, "video_url"),
])
def test_bad_videos_are_refused(seeing, part, words):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(seeing, part, text("Hello"))
    assert words in refused.value.message


def test_videos_have_a_limit_of_their_own(seeing):
    images = [image("alpha.png", detail="low")] * 4
    assert ask(seeing, *images, frames("turned.jpg"), text("Hello")).usage.prompt_tokens > 5 * 35
    with pytest.raises(openai.BadRequestError, match="2 parts of kind video are given; a prompt takes 1 at most"):
        ask(seeing, *[frames("turned.jpg")] * 2, text("Hello"))


def test_limits_are_kept(seeing):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(seeing, *[image(detail="low")] * 5, text("Hello"))
    assert "a prompt takes 4 at most" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        ask(seeing, image(), text("Hello"), extra_body={"mm_processor_kwargs": {"max_soft_tokens": 100}})
    assert "70, 140, 280, 560 or 1120" in refused.value.message


def test_media_have_a_budget_beside_the_text(start, seeing_checkpoint):
    server = start("--max-media-bytes", "600kB", "--max-body-bytes", "20kB", model=seeing_checkpoint)
    silence = io.BytesIO()
    with wave.open(silence, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(300_000))
    long = base64.b64encode(silence.getvalue()).decode()  # 400 kB, far more than a text may have

    def status(part):
        answer = server.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}], "max_tokens": 1})
        return answer.status_code, answer.text

    heard = {"type": "input_audio", "input_audio": {"data": long, "format": "wav"}}
    assert status(heard)[0] == 200, status(heard)
    code, words = status(text("x" * 30_000))
    assert code == 413 and "exceeds 20000 bytes" in words
    code, words = status({"type": "input_audio", "input_audio": {"data": long + "A" * 210_000, "format": "wav"}})
    assert code == 413 and "max-media-bytes" in words
    assert status(image())[0] == 200


def test_pixels_are_counted_for_every_scan_before_anything_is_decoded(start, seeing_checkpoint):
    server = start("--max-media-pixels", "64Mi", model=seeing_checkpoint)
    before = server.metric("mm_files_total")

    def ask_about(*files):
        parts = [{"type": "video", "video": list(files)}, text("Hello")]
        return server.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}], "max_tokens": 1})

    refused = ask_about(*[large_jpeg(8192, 2, seed) for seed in range(32)])
    assert refused.status_code == 413, refused.text
    error = refused.json()["error"]
    assert error["code"] == "too_many_pixels"
    assert error["param"] == "messages[0].content[0].video[0]"
    assert "134217728 pixels" in error["message"] and "--max-media-pixels" in error["message"]
    refused = ask_about(*[large_jpeg(4096, 1, seed) for seed in range(5)])
    assert refused.json()["error"]["param"] == "messages[0].content[0].video[4]", refused.text
    assert server.metric("mm_files_total") == before
    seen = ask_about(*[large_jpeg(256, 2, seed) for seed in range(5)])
    assert seen.status_code == 200, seen.text
    assert server.metric("mm_files_total") == before + 5
    assert server.metric("mm_pixels_total") == 5 * 2 * 256 * 256
    assert server.metric("mm_waiting_pixels") == server.metric("mm_requests") == 0


def test_more_scans_than_a_picture_needs_are_refused(seeing):
    file = base64.b64decode(large_jpeg(64, 1, 0).split(",")[1])
    scan = file[file.index(b"\xff\xda"):]
    many = "data:image/jpeg;base64," + base64.b64encode(file + 100 * scan).decode()
    with pytest.raises(openai.BadRequestError) as refused:
        ask(seeing, {"type": "image_url", "image_url": {"url": many}}, text("Hello"))
    assert "more than 100 scans" in refused.value.message


def test_a_text_model_refuses_media(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [image(), text("Hello")]}])
    assert "takes no images" in refused.value.message
