"""What an LLM answers, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ._core import _Answer, _Token

_TokenText = Callable[[int], str]


@dataclass
class Logprob:
    """The log-probability of one token, before any sampling parameter changes it."""

    logprob: float
    rank: int | None = None
    """1 for the most probable token; None where it is not among those asked for."""
    decoded_token: str | None = None


@dataclass
class ToolCall:
    """A call that the model wants to be made."""

    name: str
    arguments: str
    """A JSON object."""


@dataclass
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    """Of a chat: without thoughts and tool calls."""
    token_ids: list[int]
    """All that was generated, the stop token included."""
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    """"stop", "length", "tool_calls" or "abort"; None while it is generated."""
    stop_reason: int | str | None = None
    """The stop string or the one of ``stop_token_ids`` that ended it."""
    reasoning: str = ""
    """The thoughts of a chat answer."""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """Of every prompt token; the first has none."""
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
    """Tokens of the prompt that were found in the prefix cache."""


def _logprob_dicts(tokens: list[_Token], token_text: _TokenText) -> list[dict[int, Logprob]]:
    positions = []
    for token_id, logprob, top in tokens:
        position = {
            other_id: Logprob(other, rank, token_text(other_id)) for rank, (other_id, other) in enumerate(top, 1)
        }
        if token_id not in position:
            position[token_id] = Logprob(logprob, None, token_text(token_id))
        positions.append(position)
    return positions


def _completion(index: int, answer: _Answer, token_text: _TokenText) -> CompletionOutput:
    text, reasoning, calls, ids, tokens, finish, stop_reason, _ = answer
    output = CompletionOutput(index, text, ids, None, None, finish, stop_reason, reasoning)
    if calls:
        output.tool_calls = [ToolCall(name, arguments) for name, arguments in calls]
    if tokens is not None:
        output.logprobs = _logprob_dicts(tokens, token_text)
        output.cumulative_logprob = sum(token[1] for token in tokens)
    return output


def _prompt_logprobs(tokens: list[_Token] | None, token_text: _TokenText) -> list[dict[int, Logprob] | None] | None:
    if tokens is None:
        return None
    first: list[dict[int, Logprob] | None] = [None]
    return first + _logprob_dicts(tokens, token_text)


def _append(output: CompletionOutput, news: CompletionOutput) -> None:
    """Adds what is new to an answer."""
    output.text += news.text
    output.reasoning += news.reasoning
    output.token_ids = output.token_ids + news.token_ids
    output.tool_calls = output.tool_calls + news.tool_calls
    if news.logprobs is not None:
        output.logprobs = (output.logprobs or []) + news.logprobs
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + (news.cumulative_logprob or 0.0)
    output.finish_reason = news.finish_reason
    output.stop_reason = news.stop_reason


def _copy(output: CompletionOutput) -> CompletionOutput:
    copy = CompletionOutput.__new__(CompletionOutput)
    copy.__dict__.update(output.__dict__)
    return copy


__all__: list[Any] = ["CompletionOutput", "Logprob", "RequestOutput", "ToolCall"]
