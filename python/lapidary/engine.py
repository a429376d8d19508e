"""What LLM and AsyncLLM share: a loaded model, and how prompts and parameters become requests."""

from __future__ import annotations

import atexit
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core, keywords
from .media import media_parts, with_inline_media
from .prompts import Prompt, split
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

Messages = Sequence[Mapping[str, Any]]
"""A conversation in the shape of OpenAI's chat API. Beside its ``image_url`` and ``input_audio`` (with ``data:`` and
``file:`` addresses) a part of a message may be {"type": "image", "image": a path, bytes or one of PIL's images} or
{"type": "audio", "audio": a path or bytes}."""

_DEFAULT_MODEL = "pebble-e"
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def default_model() -> str:
    """The model of $LAPIDARY_MODEL, or else the toy model that comes with the package."""
    named = os.environ.get("LAPIDARY_MODEL")
    if named:
        return named
    model = _bundled(_DEFAULT_MODEL)
    if not model.is_dir():
        raise ValueError(f"no model was named and the bundled one is missing: there is no {model}")
    return str(model)


def _bundled(name: str) -> Path:
    variable = os.environ.get("LAPIDARY_MODELS_DIR")
    return (Path(variable) if variable else Path(__file__).parent / "models") / name


class Engine:
    """A loaded model. Every method may be called from many threads at once."""

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        tokenizer: str | os.PathLike[str] | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        limit_mm_per_prompt: Mapping[str, int] | None = None,
        enable_prefix_caching: bool = True,
        speculative_config: Mapping[str, Any] | bool | None = None,
        seed: int = 0,
        load_format: str = "auto",
        gpu_memory_utilization: float = 0.9,
        enforce_eager: bool = False,
        batch_invariant: bool = False,
        num_threads: int | None = None,
        dtype: str = "auto",
        quantization: str | None = None,
        head_bits: int | None = None,
        fast_math: bool = False,
        revision: str | None = None,
        tensor_parallel_size: int = 1,
        trust_remote_code: bool = False,
        **vllm: Any,
    ) -> None:
        """Loads a model.

        Args:
            model: A checkpoint directory, a GGUF file, or a model of the Hugging Face Hub, whose files are fetched if
                they are not in its cache: "google/gemma-4-E4B-it", a short name such as "e4b" or "e4b:q4_0". None: the
                one that the environment variable LAPIDARY_MODEL names, or the bundled toy model.
            device: "auto", "cpu" or "cuda".
            tokenizer: Where tokenizer and chat template are, if not with the model.
            max_model_len: Most tokens of a prompt and its answer.
            max_num_seqs: Most answers that are generated at once.
            max_num_batched_tokens: Most tokens of one step.
            kv_cache_memory_bytes: Memory for keys and values.
            limit_mm_per_prompt: Most images, audio files and videos of a conversation; None: {"image": 4, "audio": 1,
                "video": 1}, where the model takes any. Of what is not named, none.
            enable_prefix_caching: Keep what prompts have in common.
            speculative_config: {"model": directory, "num_speculative_tokens": 4} names the assistant that drafts; None:
                the one beside the model, if there is one; {"method": "ngram", "prompt_lookup_max": 4}: text that
                repeats is drafted, on a CPU; False: no drafts. Drafting changes speed and nothing else.
            seed: What the seeds of requests without one are derived from.
            load_format: "auto", or "dummy" for random weights.
            gpu_memory_utilization: Share of the GPU's memory that this LLM may use, whoever else is there.
            enforce_eager: Launch kernels one by one, without graphs.
            batch_invariant: On a GPU, bitwise the same answers whatever else runs. The CPU always gives those.
            num_threads: Of the CPU; None: one per core.
            dtype: "auto" or "bfloat16": weights are as the checkpoint has them.
            quantization: Matrices are rounded while they are loaded: "q8_0" (or "int8"), "q4_0"; on the CPU also
                "q4_k" and "fp8". None: they are as they are stored, quantised checkpoints included.
            head_bits: Bits of the head then: 4, 6, 8 or 16.
            fast_math: On the CPU, round activations to 8 bits where weights are in blocks: faster and not exact.
            revision: Of a model of the Hub: a branch, a tag or a commit.
            tensor_parallel_size: Ranks that share the model. On the CPU they take turns, which is no faster; on a GPU
                there is one.
            trust_remote_code: Changes nothing: checkpoints are data.
            **vllm: Further options of the command line, with '_' for '-' in their names: ``gpu_memory``, ``ple``,
                ``numa``, ``pin_threads``, ... And further keywords of vLLM's LLM: those whose values ask for what happens anyway pass, others raise a
                ValueError that says what to do.
        """
        named = _core.option_names()
        more = {name: vllm.pop(name) for name in [*vllm] if name in named}
        keywords.check(type(self).__name__, vllm, keywords.ENGINE, [*(Engine.__init__.__kwdefaults__ or ()), *named])
        more |= {"quantization": quantization, "head_bits": head_bits, "fast_math": fast_math}
        if dtype not in ("auto", "bfloat16"):
            raise ValueError(f"dtype '{dtype}' is not there; it must be auto or bfloat16")
        self.model = os.fspath(model) if model is not None else default_model()
        options = _core.SessionOptions()
        options.device = device
        options.tokenizer = os.fspath(tokenizer) if tokenizer is not None else ""
        options.max_model_len = _limit("max_model_len", max_model_len)
        options.max_num_seqs = _limit("max_num_seqs", max_num_seqs)
        options.max_num_batched_tokens = _limit("max_num_batched_tokens", max_num_batched_tokens)
        options.kv_cache_memory_bytes = _limit("kv_cache_memory_bytes", kv_cache_memory_bytes)
        options.num_threads = _limit("num_threads", num_threads)
        options.tensor_parallel_size = tensor_parallel_size
        _set_media_limits(options, limit_mm_per_prompt)
        options.prefix_caching = enable_prefix_caching
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format '{load_format}' is not there; it must be auto or dummy")
        options.dummy_weights = load_format == "dummy"
        options.gpu_memory_utilization = gpu_memory_utilization
        options.more = {name: _option(value) for name, value in more.items() if value is not None}
        options.enforce_eager = enforce_eager
        options.batch_invariant = batch_invariant
        _set_drafting(options, speculative_config)
        self._seed = seed
        self._num_answers = 0
        self._num_requests = 0
        self._count_lock = threading.Lock()
        path, options.draft_model = _core.find_model(_with_revision(self.model, revision), options)
        self._open_session: _core.Session | None = _core.Session(path, options)
        _open_engines.add(self)

    @property
    def device(self) -> str:
        """Where the model runs: "cpu" or "cuda"."""
        return self._session.device

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self._session.vocab_size

    @property
    def max_model_len(self) -> int:
        """Most tokens of a prompt and its answer."""
        return self._session.max_model_len

    @property
    def stop_token_ids(self) -> list[int]:
        """The checkpoint's own stop tokens."""
        return self._session.stop_token_ids

    @property
    def bos_token_id(self) -> int:
        """The token that texts begin with; -1: none."""
        return self._session.bos_token_id

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, in which special tokens may be spelled out; <bos> comes first."""
        return self._session.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._session.decode(list(ids), skip_special_tokens)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: encode, decode and apply_chat_template."""
        return Tokenizer(self, lambda fields: self._encode_chat(fields).ids)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt that the model's chat template makes of a conversation; an image or audio file is one token in it."""
        fields = conversation(messages, tools, None, chat_template_kwargs, add_generation_prompt)
        return self._render(fields)

    def _render(self, fields: Mapping[str, Any]) -> str:
        return self._session.render(_dump(fields))

    def close(self) -> None:
        """Ends what runs and frees the model's memory; calls that come later raise, and so does what still waits."""
        session, self._open_session = self._open_session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _session(self) -> _core.Session:
        if self._open_session is None:
            raise _core.Error("the session is closed")
        return self._open_session

    def _encode_prompt(self, prompt: Prompt) -> tuple[str | None, _core.Prompt]:
        text, ids, options = split(prompt)
        try:
            encoded = self._session.encode_prompt(text or "") if ids is None else _core.Prompt(list(ids))
        except TypeError:
            raise ValueError(f"{prompt!r:.80} is no prompt: token ids are integers") from None
        media: dict[str, Any] = {"parts": media_parts(options.get("multi_modal_data", {}))}
        if media["parts"]:
            if "mm_processor_kwargs" in options:
                media["mm_processor_kwargs"] = dict(options["mm_processor_kwargs"])
            encoded = self._session.add_media(encoded, _dump(media))
        encoded.cache_salt = options.get("cache_salt", "")
        return text, encoded

    def _encode_chat(self, conversation: Mapping[str, Any]) -> _core.Prompt:
        return self._session.encode_chat(_dump(conversation))

    def _next_request(self, num_answers: int) -> tuple[str, int]:
        """An id, and a seed for a request that has none."""
        with self._count_lock:
            number, seed = self._num_requests, self._seed + self._num_answers
            self._num_requests += 1
            self._num_answers += num_answers
        return str(number), seed % 2**64

    def _token_text(self, token_id: int) -> str:
        try:
            return self._session.decode([token_id], False)
        except ValueError:  # A row that only pads the embedding has no text.
            return ""


def conversation(
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    mm_processor_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
) -> dict[str, Any]:
    """The fields of a chat request that make the prompt."""
    fields: dict[str, Any] = {"messages": with_inline_media(messages)}
    if tools is not None:
        fields["tools"] = list(tools)
    if tool_choice is not None:
        fields["tool_choice"] = tool_choice
    if chat_template_kwargs is not None:
        fields["chat_template_kwargs"] = dict(chat_template_kwargs)
    if mm_processor_kwargs is not None:
        fields["mm_processor_kwargs"] = dict(mm_processor_kwargs)
    if continue_final_message:
        fields["continue_final_message"] = True
    if not add_generation_prompt or continue_final_message:
        fields["add_generation_prompt"] = False
    return fields


def params_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int, default: SamplingParams
) -> list[SamplingParams]:
    if params is None:
        params = default
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise ValueError(f"there are {num_prompts} prompts but {len(params)} sampling parameters")
    return list(params)


def is_one_prompt(prompts: Any) -> bool:
    """Not a list of prompts."""
    if isinstance(prompts, (str, Mapping)):
        return True
    return len(prompts) > 0 and isinstance(prompts[0], int)


def _dump(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the conversation cannot be written as JSON: {error}") from None


def _option(value: Any) -> str:
    """As it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _limit(name: str, value: int | None) -> int:
    if value is not None and value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value or 0


def _with_revision(model: str, revision: str | None) -> str:
    """A name with its revision, as the commands write it."""
    is_here = os.path.exists(model)
    if not is_here and "/" not in model and _bundled(model).is_dir():
        return str(_bundled(model))
    if revision is None or (is_here and revision == "main"):
        return model
    if is_here:
        raise ValueError(f"revision '{revision}' is of the Hugging Face Hub, but {model} is a path on this machine")
    return f"{model}@{revision}"


def _set_media_limits(options: _core.SessionOptions, limits: Mapping[str, int] | None) -> None:
    if limits is None:
        return
    unknown = set(limits) - {"image", "audio", "video"}
    if unknown:
        raise ValueError(f"limit_mm_per_prompt has kinds that are not known: {', '.join(sorted(unknown))}")
    options.max_images = limits.get("image", 0)
    options.max_sounds = limits.get("audio", 0)
    options.max_videos = limits.get("video", 0)


def _set_drafting(options: _core.SessionOptions, config: Mapping[str, Any] | bool | None) -> None:
    options.drafting = config is not False
    if not isinstance(config, Mapping):
        return
    unknown = set(config) - {"model", "num_speculative_tokens", "method", "prompt_lookup_min", "prompt_lookup_max"}
    if unknown:
        raise ValueError(f"speculative_config has fields that are not known: {', '.join(sorted(unknown))}")
    method = config.get("method", "mtp")
    if method not in ("mtp", "ngram"):
        raise ValueError(f"speculative_config: method '{method}' is not there; Gemma 4 drafts by 'mtp' or 'ngram'")
    options.draft_method = "ngram" if method == "ngram" else "assistant"
    options.prompt_lookup_min = int(config.get("prompt_lookup_min", 0))
    options.prompt_lookup_max = int(config.get("prompt_lookup_max", 0))
    options.draft_model = os.fspath(config.get("model", ""))
    options.num_draft_tokens = int(config.get("num_speculative_tokens", 0))


@atexit.register
def _close_all() -> None:
    """Engines have threads of their own, which must end before the interpreter does."""
    for engine in list(_open_engines):
        engine.close()
