"""How answers are drawn and where they end."""

from __future__ import annotations

import copy
import enum
import json as json_module
from dataclasses import InitVar, dataclass
from typing import Any

from . import _core, keywords


class RequestOutputKind(enum.Enum):
    """What an AsyncLLM yields."""

    CUMULATIVE = 0
    """All of the answer so far, every time."""
    DELTA = 1
    """What is new."""
    FINAL_ONLY = 2
    """The whole answer, once."""


@dataclass
class StructuredOutputsParams:
    """What the answer must be; exactly one field says it."""

    json: str | dict[str, Any] | None = None
    """A JSON Schema."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """In llama.cpp's or in Lark's notation."""
    json_object: bool | None = None
    """Any JSON object."""
    structural_tag: str | dict[str, Any] | None = None

    def _to_core(self) -> _core.Constraint:
        kind = _core.ConstraintKind
        forms: list[tuple[_core.ConstraintKind, Any]] = [
            (kind.JSON_SCHEMA, self.json),
            (kind.REGEX, self.regex),
            (kind.CHOICE, self.choice),
            (kind.GRAMMAR, self.grammar),
            (kind.JSON_OBJECT, self.json_object or None),
            (kind.STRUCTURAL_TAG, self.structural_tag),
        ]
        given = [(form, value) for form, value in forms if value is not None]
        if len(given) != 1:
            raise ValueError(f"structured_outputs needs exactly one form of the answer, but has {len(given)}")
        form, value = given[0]
        if form == kind.CHOICE:
            return _core.Constraint(form, "", list(value))
        if form == kind.JSON_OBJECT:
            return _core.Constraint(form, "", [])
        return _core.Constraint(form, value if isinstance(value, str) else json_module.dumps(value), [])


@dataclass
class SamplingParams:
    """How to answer one prompt. What is None is as the checkpoint says; vLLM takes neutral values then."""

    n: int = 1
    """Answers to the prompt, each with its own seed: the given one plus its index."""
    temperature: float | None = None
    """Above 1 bolder, below 1 safer, 0: always the most probable token."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    """The same seed gives the same tokens. None: derived from the LLM's seed and the requests before."""
    stop: str | list[str] | None = None
    """The answer ends before any of these texts."""
    stop_token_ids: list[int] | None = None
    """The answer ends with any of these tokens, beside the checkpoint's own."""
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """Most tokens of an answer; None: what the context leaves."""
    min_tokens: int = 0
    """Before so many tokens nothing stops the answer."""
    bad_words: list[str] | None = None
    """The tokens that spell one, as it stands or behind a space, never follow each other."""
    logprobs: int | None = None
    """Up to 20: that many of the most probable tokens beside each sampled one; 0: the sampled one alone."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None
    """Of a chat: tokens after which thoughts must end."""
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None

    # vLLM's, for which there is one value here (keywords.py).
    detokenize: InitVar[bool] = True
    spaces_between_special_tokens: InitVar[bool] = True
    logits_processors: InitVar[Any] = None
    truncate_prompt_tokens: InitVar[int | None] = None
    best_of: InitVar[int | None] = None
    use_beam_search: InitVar[bool] = False
    flat_logprobs: InitVar[bool] = False
    skip_reading_prefix_cache: InitVar[bool | None] = None
    guided_decoding: InitVar[Any] = None
    extra_args: InitVar[dict[str, Any] | None] = None
    skip_clone: InitVar[bool] = False

    def __post_init__(self, *others: Any) -> None:
        keywords.check("SamplingParams", dict(zip(keywords.SAMPLING, others)), keywords.SAMPLING)

    def clone(self) -> SamplingParams:
        """A copy that shares nothing with this one."""
        return copy.deepcopy(self)

    def _to_core(self) -> _core.Request:
        request = _core.Request()
        try:
            request.num_answers = self.n
            request.temperature = self.temperature
            request.top_p = self.top_p
            request.top_k = self.top_k
            request.min_p = self.min_p
            request.repetition_penalty = self.repetition_penalty
            request.presence_penalty = self.presence_penalty
            request.frequency_penalty = self.frequency_penalty
            request.seed = None if self.seed is None else self.seed % 2**64
            request.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
            request.stop_token_ids = list(self.stop_token_ids or [])
            request.ignore_eos = self.ignore_eos
            request.max_tokens = self.max_tokens
            request.min_tokens = self.min_tokens
            request.bad_words = list(self.bad_words or [])
            request.num_logprobs = -1 if self.logprobs is None else self.logprobs
            request.num_prompt_logprobs = -1 if self.prompt_logprobs is None else self.prompt_logprobs
            request.skip_special_tokens = self.skip_special_tokens
            request.include_stop = self.include_stop_str_in_output
            request.logit_bias = [(int(id), bias) for id, bias in (self.logit_bias or {}).items()]
            request.allowed_token_ids = list(self.allowed_token_ids or [])
            request.thinking_token_budget = self.thinking_token_budget
        except TypeError:
            raise ValueError(f"a field of {self!r} has the wrong type") from None
        if self.structured_outputs is not None:
            request.constraint = self.structured_outputs._to_core()
        return request
