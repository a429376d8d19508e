import enum
from collections.abc import Callable, Sequence

import numpy
import numpy.typing

__version__: str

class Error(RuntimeError): ...
class BusyError(Error): ...
class DeviceError(Error): ...

def set_log_level(level: str) -> None: ...
def option_names() -> list[str]: ...
def find_model(model: str, options: SessionOptions) -> tuple[str, str]: ...

_Token = tuple[int, float, list[tuple[int, float]]]
_Answer = tuple[str, str, list[tuple[str, str]], list[int], list[_Token] | None, str | None, int | str | None, int]
_Update = tuple[int, int, _Answer, list[_Token], bool, str | None, bool]

class Prompt:
    def __init__(self, ids: Sequence[int]) -> None: ...
    @property
    def ids(self) -> list[int]: ...
    cache_salt: str

class ConstraintKind(enum.Enum):
    JSON_OBJECT = ...
    JSON_SCHEMA = ...
    REGEX = ...
    CHOICE = ...
    GRAMMAR = ...
    STRUCTURAL_TAG = ...

class Constraint:
    def __init__(self, kind: ConstraintKind, text: str, choices: Sequence[str]) -> None: ...

class Request:
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: list[tuple[int, float]]
    allowed_token_ids: list[int]
    seed: int | None
    num_answers: int
    max_tokens: int | None
    min_tokens: int
    bad_words: list[str]
    priority: int
    stop: list[str]
    stop_token_ids: list[int]
    include_stop: bool
    ignore_eos: bool
    skip_special_tokens: bool
    num_logprobs: int
    num_prompt_logprobs: int
    constraint: Constraint | None
    thinking_token_budget: int | None

class SessionOptions:
    device: str
    tokenizer: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_memory_bytes: int
    prefix_caching: bool
    num_threads: int
    tensor_parallel_size: int
    max_images: int
    max_sounds: int
    max_videos: int
    drafting: bool
    draft_model: str
    draft_method: str
    prompt_lookup_min: int
    prompt_lookup_max: int
    num_draft_tokens: int
    dummy_weights: bool
    dummy_seed: int
    more: dict[str, str]
    gpu_memory_utilization: float
    batch_invariant: bool
    enforce_eager: bool

class Session:
    def __init__(self, model: str, options: SessionOptions) -> None: ...
    def close(self) -> None: ...
    @property
    def device(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def stop_token_ids(self) -> list[int]: ...
    @property
    def bos_token_id(self) -> int: ...
    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...
    def render(self, conversation: str) -> str: ...
    def encode_prompt(self, text: str) -> Prompt: ...
    def encode_chat(self, conversation: str) -> Prompt: ...
    def add_media(self, prompt: Prompt, media: str) -> Prompt: ...
    def generate(
        self, jobs: list[tuple[Prompt, Request, int]], on_progress: Callable[[int], object] | None
    ) -> list[tuple[list[_Answer], list[_Token] | None]]: ...
    def logits(self, ids: Sequence[int]) -> numpy.typing.NDArray[numpy.float32]: ...
    def open(self) -> Stream: ...

class Stream:
    def add(self, prompt: Prompt, request: Request, seed: int | None) -> int: ...
    def cancel(self, request: int) -> None: ...
    def take(self) -> list[_Update]: ...
    @property
    def fd(self) -> int: ...
