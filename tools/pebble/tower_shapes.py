"""Shapes of the towers, and the configs of a target that has them, in transformers' form."""
from dataclasses import dataclass

from configs import TARGETS
from tokenizer import SPECIAL

PATCH, POOL = 16, 3
MAX_SOFT_TOKENS = 70
IDS = {"image_token_id": "<|image|>", "audio_token_id": "<|audio|>", "video_token_id": "<|video|>",
       "boi_token_id": "<|image>", "eoi_token_id": "<image|>", "boa_token_id": "<|audio>", "eoa_token_id": "<audio|>",
       "eoa_token_index": "<audio|>"}


@dataclass
class VisionConfig:
    """A tower of the S kind."""
    hidden: int = 96
    layers: int = 3
    heads: int = 3
    inner: int = 256
    positions: int = 256

    def config(self):
        return {"model_type": "gemma4_vision", "hidden_size": self.hidden, "intermediate_size": self.inner,
                "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.heads,
                "head_dim": self.hidden // self.heads, "position_embedding_size": self.positions,
                "patch_size": PATCH, "pooling_kernel_size": POOL, "use_clipped_linears": True, "standardize": False}


@dataclass
class AudioConfig:
    """A conformer."""
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    channels: int = 8
    output: int = 64

    def config(self):
        return {"model_type": "gemma4_audio", "hidden_size": self.hidden, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "subsampling_conv_channels": [128, self.channels],
                "output_proj_dims": self.output, "use_clipped_linears": True}


@dataclass
class CellConfig:
    """No tower: a cell of 48 x 48 pixels is a soft token."""
    hidden: int = 64
    positions: int = 256

    def config(self):
        return {"model_type": "gemma4_unified_vision", "mm_embed_dim": self.hidden, "output_proj_dims": self.hidden,
                "mm_posemb_size": self.positions, "patch_size": PATCH, "pooling_kernel_size": POOL}


@dataclass
class WaveConfig:
    """No tower: 640 samples are a soft token."""
    samples: int = 640

    def config(self):
        return {"model_type": "gemma4_unified_audio", "audio_embed_dim": self.samples}


TOWERS = {"pebble-e": (VisionConfig(), AudioConfig()), "pebble-dense": (CellConfig(), WaveConfig())}


def media_config(model):
    vision, audio = TOWERS[model]
    unified = isinstance(vision, CellConfig)
    kind = "gemma4_unified" if unified else "gemma4"
    text = TARGETS[model].text_config()
    text.pop("architectures")
    text["model_type"] = f"{kind}_text"
    if unified:
        text["use_bidirectional_attention"] = "vision"
    return {"architectures": ["Gemma4UnifiedForConditionalGeneration" if unified else "Gemma4ForConditionalGeneration"],
            "model_type": kind, "dtype": "bfloat16", "tie_word_embeddings": True, "text_config": text,
            "vision_config": vision.config(), "audio_config": audio.config(),
            **{name: SPECIAL[token] for name, token in IDS.items()}, "eos_token_id": [1, 106]}


def processor_config(model):
    kind = "Gemma4Unified" if isinstance(TOWERS[model][0], CellConfig) else "Gemma4"
    return {"processor_class": f"{kind}Processor", "image_seq_length": MAX_SOFT_TOKENS,
            "image_processor": {"image_processor_type": f"{kind}ImageProcessor", "max_soft_tokens": MAX_SOFT_TOKENS},
            "feature_extractor": {"feature_extractor_type": f"{kind}AudioFeatureExtractor"}}
