// Opens a model for running: plan, weights, an executor and, for requests, an engine over it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/thread_placement.h"
#include "device/device_choice.h"
#include "engine/engine.h"
#include "executor/cuda/cuda_options.h"
#include "executor/executor.h"
#include "executor/simulated/simulated_executor.h"
#include "load/drafting.h"
#include "load/limits.h"
#include "load/model_directory.h"
#include "model/expert_counts.h"
#include "model/footprint.h"
#include "model/weight_table.h"

namespace lapidary {

enum class LoadFormat {
  kAuto,   // the directory's safetensors, or the GGUF file
  kDummy,  // random weights made in memory; a config or a preset is enough
};

struct LoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  uint64_t dummy_seed = 0;
  // The matrices become this type (CanQuantiseTo) as they are loaded; on a GPU q4_0 or q8_0.
  std::optional<DType> quantisation;
  int head_bits = 0;  // of the head (WeightRequest)
  // Activations are rounded to 8 bits where weights are in blocks; on the CPU alone.
  bool fast_math = false;
  int num_threads = 0;  // 0: one per core
  NumaMode numa = NumaMode::kDistribute;
  bool pin_threads = false;  // a core for each
  int num_ranks = 1;         // that share the model (model/shard.h); on the CPU alone
  BatchLimits limits;        // 0: as the device likes it
  // The KV pool, of every rank's: bytes, or room for so many sequences of so many tokens. With
  // neither, on a GPU what its memory leaves; on the CPU room for as many full contexts as run at
  // once, within a quarter of the machine's memory, but for one in any case.
  std::optional<int64_t> kv_cache_memory_bytes;
  std::optional<KvFormat> kv_format;  // absent: DefaultKvFormat
  int64_t max_tokens = 0;
  int num_sequences = 1;
  bool skip_unneeded_rows = true;
  DraftingRequest drafting;
  std::shared_ptr<ExpertCounts> expert_counts;  // null: they are not counted
  DeviceChoice device;                          // default: the CPU
  // For a GPU: what is not said by the fields above, which go before it. Of a simulated device, its
  // share of the card's memory.
  cuda::CudaExecutorOptions cuda;
  simulated::SimulationOptions simulation;  // for DeviceKind::kSimulated
};

struct LoadedModel {
  ModelDescription description;
  BatchLimits limits;  // complete
  std::unique_ptr<Executor> executor;
  std::string assistant;  // that drafts; empty: none does
  Footprint weights;      // bytes, as they are computed with
  std::vector<WeightRow> weight_table;
  double load_ms = 0.0;
};

Result<LoadedModel> LoadModel(ModelDescription description, const LoadOptions& options);

struct LoadedEngine {
  ModelDescription description;
  BatchLimits limits;  // complete
  std::unique_ptr<Engine> engine;
  std::string assistant;  // that drafts; empty: none does
  Footprint weights;      // bytes, as they are computed with
  std::vector<WeightRow> weight_table;
  double load_ms = 0.0;
};

// The limits of `options` go before those of `engine_options`.
Result<LoadedEngine> LoadEngine(ModelDescription description, const LoadOptions& options,
                                const EngineOptions& engine_options);

}  // namespace lapidary
