// Opens a model for running: plan, weights and an executor with room for some tokens.
#pragma once

#include <memory>
#include <string>

#include "engine/model_directory.h"
#include "executor/executor.h"

namespace lapidary {

enum class LoadFormat {
  kAuto,   // the directory's safetensors
  kDummy,  // random weights made in memory; a config or a preset is enough
};

struct LoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  uint64_t dummy_seed = 0;
  int num_threads = 0;      // 0: one per core
  int64_t max_tokens = 0;   // the KV pool holds one sequence of this length
  int32_t max_chunk = 512;  // rows of one step
  bool skip_unneeded_rows = true;
};

struct LoadedModel {
  ModelDescription description;
  std::unique_ptr<Executor> executor;
  double load_ms = 0.0;
};

Result<LoadedModel> LoadModel(const std::string& model_or_preset, const LoadOptions& options);

}  // namespace lapidary
