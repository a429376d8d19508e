// Writes random checkpoints in the exact Hugging Face layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json_fields.h"
#include "base/thread_pool.h"
#include "tensor/dtype.h"

namespace lapidary {

struct SynthOptions {
  uint64_t seed = 0;
  DType dtype = DType::kBF16;
  int64_t max_shard_bytes = int64_t{5} << 30;
  // Also write what must be ignored: K/V of layers that share KV, and a few tower tensors when the
  // config is multimodal but describes no tower, all filled with NaN.
  bool poison_unused = false;
};

// config.json, model*.safetensors, generation_config.json, tokenizer.json, tokenizer_config.json
// and chat_template.jinja. `config` is a config.json as PresetConfig returns it. The directory must
// not exist yet, or be empty.
Status WriteSyntheticCheckpoint(const Json& config, const SynthOptions& options,
                                const std::filesystem::path& directory, ThreadPool& threads);

// config.json, model.safetensors and generation_config.json of an assistant (assistant_preset.h).
Status WriteSyntheticAssistant(const Json& config, const SynthOptions& options,
                               const std::filesystem::path& directory, ThreadPool& threads);

}  // namespace lapidary
