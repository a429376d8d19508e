"""Images, audio and videos in messages: files, bytes and PIL's images as the data: URIs that the engine reads."""

from __future__ import annotations

import array
import base64
import io
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# The part that the engine reads, by the names that vLLM and transformers have for images and audio that are at hand.
_PART_OF = {"image": "image_url", "image_pil": "image_url", "audio": "audio_url"}


def with_inline_media(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, with every image and audio file, and the frames of every video, in them."""
    inlined: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, Sequence) and not isinstance(content, str):
            message = {**message, "content": [_inline(part) for part in content]}
        inlined.append(message)
    return inlined


def media_parts(data: Mapping[str, Any]) -> list[Any]:
    """vLLM's multi_modal_data as parts of a message, with all files in them."""
    parts = []
    for kind, given in data.items():
        if kind not in ("image", "audio"):
            what = "videos belong in a message of chat()" if kind == "video" else "it takes 'image' and 'audio'"
            raise ValueError(f"multi_modal_data has no kind '{kind}': {what}")
        several = given if isinstance(given, list) else [] if given is None else [given]
        parts += [_inline({"type": kind, kind: _wav(each) if isinstance(each, tuple) else each}) for each in several]
    return parts


def _wav(sound: tuple[Any, ...]) -> bytes:
    """(samples, rate) as a file: mono, float32."""
    try:
        samples, rate = sound
        data = array.array("f", samples).tobytes()
        header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 3, 1, int(rate),
                             4 * int(rate), 4, 32, b"data", len(data))
    except (TypeError, ValueError, struct.error):
        raise ValueError("audio given as a tuple must be (samples, rate): numbers in [-1, 1], and how many a second") from None
    return header + data


def _inline(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind in _PART_OF:
        target = _PART_OF[kind]
        return {"type": target, target: {"url": _data_uri(_file_of(part.get(kind), kind))}}
    if kind == "video":
        frames = part.get("video")
        if not isinstance(frames, Sequence) or isinstance(frames, (str, bytes, bytearray)):
            raise ValueError("a part of type 'video' needs a list of frames as its \"video\": video files are not decoded")
        return {**part, "video": [_inline_frame(frame) for frame in frames]}
    if kind in ("image_url", "audio_url"):
        given = part.get(kind)
        options = dict(given) if isinstance(given, Mapping) else {"url": given}
        url = options.get("url")
        if isinstance(url, str) and url.startswith("file:"):
            options["url"] = _data_uri(_read(Path(unquote(urlsplit(url).path))))
            return {**part, kind: options}
    return part


def _inline_frame(frame: Any) -> dict[str, Any]:
    """An image of any kind or its address, by itself or as {"image" or "url": ..., "timestamp": seconds}."""
    timed = dict(frame) if isinstance(frame, Mapping) else {"image": frame}
    picture = timed.pop("image", timed.get("url"))
    if not isinstance(picture, str) or not picture.startswith(("data:", "http:", "https:", "file:")):
        return {**timed, "url": _data_uri(_file_of(picture, "image"))}
    if picture.startswith("file:"):
        picture = _data_uri(_read(Path(unquote(urlsplit(picture).path))))
    return {**timed, "url": picture}


def _file_of(medium: Any, kind: str) -> bytes:
    """A medium as the bytes of a file."""
    if isinstance(medium, (bytes, bytearray, memoryview)):
        return bytes(medium)
    if isinstance(medium, (str, os.PathLike)):
        return _read(Path(medium))
    if kind != "audio" and hasattr(medium, "save") and hasattr(medium, "mode"):  # PIL.Image.Image
        file = io.BytesIO()
        image = medium if medium.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else medium.convert("RGB")
        image.save(file, format="PNG", compress_level=1)
        return file.getvalue()
    takes = "a path or the bytes of a file" + ("" if kind == "audio" else ", or one of PIL's images")
    raise ValueError(f"a part of type '{kind}' needs {takes} as its \"{kind}\", got {type(medium).__name__}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _data_uri(file: bytes) -> str:
    return "data:;base64," + base64.b64encode(file).decode()
