"""What may be continued: texts, token ids, and images or audio that belong to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Union

from . import keywords


class _PromptOptions(TypedDict, total=False):
    multi_modal_data: Mapping[str, Any]
    """{"image": one or several, "audio": one or several}, for the placeholder tokens of the prompt in their order. An
    image is a path, the bytes of a file or one of PIL's; audio a path, the bytes of a file, or (samples, rate)."""
    mm_processor_kwargs: Mapping[str, Any]
    """{"max_soft_tokens": 560}: most tokens of an image; 70, 140, 280 (the default), 560 or 1120."""
    cache_salt: str
    """The prefix cache is shared only with prompts that have the same."""


class TextPrompt(_PromptOptions, total=False):
    """A text to continue."""

    prompt: str


class TokensPrompt(_PromptOptions, total=False):
    """Token ids that are used as they stand."""

    prompt_token_ids: Sequence[int]
    prompt: str
    """What the output tells as its prompt."""


Prompt = Union[str, Sequence[int], TextPrompt, TokensPrompt, Mapping[str, Any]]
"""Text to continue, token ids used as they stand, or a dict of either with what belongs to it."""


def split(prompt: Prompt) -> tuple[str | None, Sequence[int] | None, Mapping[str, Any]]:
    """A prompt's text, its ids and what belongs to it; the ids take precedence over the text."""
    if isinstance(prompt, str):
        return prompt, None, {}
    if not isinstance(prompt, Mapping):
        return None, prompt, {}
    given: Mapping[str, Any] = prompt
    text, ids = given.get("prompt"), given.get("prompt_token_ids")
    if text is None and ids is None:
        raise ValueError('a prompt given as a dict needs "prompt" or "prompt_token_ids"')
    if ids is None and not isinstance(text, str):
        raise ValueError(f'"prompt" must be a text, got {type(text).__name__}')
    own = ("prompt", "prompt_token_ids", *_PromptOptions.__annotations__)
    try:
        rest = {name: value for name, value in given.items() if name not in own}
        keywords.check("a prompt", rest, keywords.PROMPT, own)
    except TypeError as error:  # It is a key here.
        raise ValueError(str(error).replace("keyword", "key")) from None
    return text, ids, {name: value for name in _PromptOptions.__annotations__ if (value := given.get(name)) is not None}
