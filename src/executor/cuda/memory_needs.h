// What the CUDA executor allocates before it sizes the KV pool, in closed form: the executor takes
// its sizes from here, and `lapidary plan` says them where there is no GPU. No CUDA types.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "executor/cuda/forward_limits.h"
#include "kv/kv_layout.h"
#include "model/plan.h"
#include "model/tensor_specs.h"
#include "model/weight_plan.h"
#include "ops/cuda/resident/resident_scratch.h"

namespace lapidary::cuda {

// Matrices one behind the other as they are bound, f32 vectors 16 bytes aligned. Scalars stay
// on the host, but have a place among the vectors.
struct WeightBytes {
  int64_t matrices = 0;
  int64_t vectors = 0;
  int64_t host_table = 0;  // per-layer embeddings, page-locked, with PlePlacement::kHost

  int64_t on_device() const { return matrices + vectors; }
};
WeightBytes PlanWeights(const WeightPlan& weights, PlePlacement ple_placement);
// The limits of an executor's steps, with what its weights in tiles ask for: of the model's program
// and of its drafter's, which share their scratch. `num_sms`: 0 where no GPU is known.
struct ExecutorLimits {
  CudaForwardLimits forward;
  CudaForwardLimits drafting;
};
ExecutorLimits LimitsOf(const CudaExecutorOptions& options_with_padding, int num_sms,
                        const WeightPlan& weights, const std::optional<WeightPlan>& drafter);

int64_t VectorBytes(const PlannedWeight& vector);
// The table of per-layer embeddings, which may live on the host.
bool IsPleTable(const TensorSpec& spec);

// What the slots keep on the device (SlotMemory). Lists may outgrow their buffer; requests with
// plain settings do not.
struct SlotBytes {
  int64_t states = 0;
  int64_t sampling = 0;
  int64_t lists = 0;
  int64_t replaced = 0;
  int64_t bindings = 0;
  std::array<int64_t, kNumKvGroups> tables{};

  int64_t total() const;
};
SlotBytes PlanSlots(const ModelPlan& plan, const KvLayout& layout, int num_slots);
// Words that adjustments of one row may replace.
int64_t MaxReplacedWords(int vocab_size);
// Blocks of a slot's page table.
int TableStride(const ModelPlan& plan, const KvLayout& layout, int group);

// Masks of so many rows under a grammar.
int64_t MaskBytes(int vocab_size, int64_t rows);
// The most that a step has.
int MaxMaskedRows(const CudaForwardLimits& limits);

// Of the largest step: its arrays (step_layout.h), and pairs of pages to be copied.
int64_t StepArrayBytes(const ModelPlan& plan, const KvLayout& layout,
                       const CudaForwardLimits& limits);
int64_t PageCopyBytes(const CudaForwardLimits& limits);

// Rows on their way through a decoder (CudaBlocks), so many at most.
struct BlockBytes {
  int64_t hidden = 0;  // there are two
  int64_t narrow = 0;  // there are two
  int64_t wide = 0;
  int64_t queries = 0;
  int64_t attended = 0;
  int64_t rope = 0;  // frequencies and tables of all rotary plans

  int64_t total() const { return 2 * (hidden + narrow) + wide + queries + attended + rope; }
};
BlockBytes PlanBlocks(const ModelPlan& plan, int64_t rows);

// Bytes of each of CudaForward's buffers and of everything else that steps need.
struct WorkspaceBytes {
  BlockBytes blocks;
  int64_t ple = 0;
  int64_t gathered = 0;
  int64_t logits = 0;
  int64_t sampled = 0;
  int64_t sampling_scratch = 0;
  int64_t masks = 0;
  int64_t partials = 0;
  int64_t counters = 0;
  int64_t router_choice = 0;
  int64_t route_counters = 0;
  int64_t expert_inputs = 0;
  int64_t expert_scratch = 0;
  int64_t expert_counts = 0;
  int64_t small_entries = 0;
  int64_t large_entries = 0;
  int64_t stored_layers = 0;  // there are two
  int64_t linear = 0;         // of the LinearRunner
  int64_t resident = 0;       // one-token steps as one kernel: scratch and program
  int64_t slots = 0;
  int64_t step_arrays = 0;
  int64_t page_copies = 0;

  int64_t total() const;
};
WorkspaceBytes PlanWorkspace(const ModelPlan& plan, const KvLayout& layout,
                             const CudaForwardLimits& limits);

// What one-token steps of a model exchange, where they are one kernel.
ResidentExchanges PlanExchanges(const ModelPlan& plan);

// Of a CudaDrafter, its weights apart.
struct DrafterBytes {
  BlockBytes blocks;
  int64_t hidden_rows = 0;
  int64_t inputs = 0;
  int64_t feedback = 0;
  int64_t token_ordering = 0;
  int64_t head = 0;
  int64_t simulated_rates = 0;
  int64_t resident = 0;

  int64_t total() const {
    return blocks.total() + hidden_rows + inputs + feedback + token_ordering + head +
           simulated_rates + resident;
  }

  // Where in `head` what lies, for so many rows.
  struct HeadPlaces {
    int64_t winners = 0;   // uint64 [rows]
    int64_t counters = 0;  // int32 [rows]
    int64_t chosen = 0;    // int32 [rows, top_k]; ordered heads only
    int64_t scores = 0;    // f32 [rows, centroids]; ordered heads only
    int64_t end = 0;
  };
  static HeadPlaces PlaceHead(const AssistantPlan& plan, int64_t rows);
};
DrafterBytes PlanDrafter(const AssistantPlan& plan, const CudaForwardLimits& limits);

inline constexpr int kStoredLayerBytes = 32;  // sizeof(StoredLayer)

// Of one rotary plan: f32 [pairs], float2 [max_rows, RopeRowPairs].
int64_t RopeFrequencyBytes(const RopePlan& rope);
int64_t RopeTableBytes(const RopePlan& rope, int64_t max_rows);

// Bytes of a row of an owner's new entries.
int64_t EntryRowBytes(const LayerPlan& owner);
// Steps of so few rows keep the new entries of all layers and store them together: a row for each
// sequence, and those of its drafts if that takes little memory.
int MostRowsStoredAtEnd(const ModelPlan& plan, const CudaForwardLimits& limits);
// Whether another layer reads this one's KV.
bool IsKvDonor(const ModelPlan& plan, const LayerPlan& owner);

}  // namespace lapidary::cuda
