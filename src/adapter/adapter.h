// A LoRA adapter in memory: low-rank deltas of a decoder's matrices, y = W x + scale * B (A x).
//
// It is read from a directory in PEFT's format or a GGUF file of llama.cpp's, checked against the
// model's plan, and never applied in part: whatever does not fit is an error that names the tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/adapter_config.h"
#include "adapter/adapter_names.h"
#include "model/plan.h"
#include "tensor/matrix_ref.h"

namespace lapidary {

// y[first_row + i] += scale * (B (A x))[i]
struct LoraDelta {
  MatrixRef a;        // [rank, columns of the matrix], F32, F16 or BF16; no data: no delta
  MatrixRef b;        // [rows, rank]
  int first_row = 0;  // of the matrix; not 0 of an up_proj that is part of a gate_up_proj
  float scale = 0.0f;
};

struct AdapterOptions {
  double scale = 1.0;  // of all deltas, beside what the files say
  int max_rank = kMaxAdapterRank;
};

// Immutable, and shared by all that use it.
class Adapter {
 public:
  // A directory with adapter_config.json and adapter_model.safetensors, or a GGUF file.
  static Result<std::shared_ptr<const Adapter>> Load(const std::filesystem::path& path,
                                                     const ModelPlan& plan,
                                                     const AdapterOptions& options = {});
  // The same of files in memory; `name` begins the messages.
  static Result<std::shared_ptr<const Adapter>> Parse(std::string_view config,
                                                      std::vector<std::byte> tensors,
                                                      const ModelPlan& plan,
                                                      const AdapterOptions& options,
                                                      std::string_view name);

  static Result<std::shared_ptr<const Adapter>> ParseGguf(std::vector<std::byte> file,
                                                          const ModelPlan& plan,
                                                          const AdapterOptions& options,
                                                          std::string_view name);

  // Of the files' bytes and the scale: what was computed with one adapter is another's only where
  // these agree (PrefixIdentity::adapter). Never 0.
  uint64_t digest() const { return digest_; }
  int max_rank() const { return max_rank_; }
  int num_modules() const { return num_modules_; }  // in the file
  // Of those, in layers that read another layer's KV: nobody computes their keys and values.
  int num_ignored() const { return num_ignored_; }
  int num_applied() const { return num_modules_ - num_ignored_; }
  int64_t num_bytes() const { return static_cast<int64_t>(tensors_.size()); }
  // "420 of 420 modules, rank 16"; names what is ignored.
  std::string Summary() const;

  // Null: the matrix has no delta. `layer` -1: outside the layers. Not for experts.
  const LoraDelta* Find(AdapterSite site, int layer) const {
    const LoraDelta& delta = sites_[layer + 1][static_cast<int>(site)];
    return delta.a.data == nullptr ? nullptr : &delta;
  }
  // Of one expert's gate_up_proj or down_proj; deltas of gate and up may be apart.
  std::span<const LoraDelta> OfExpert(AdapterSite site, int layer, int expert) const {
    const auto& experts = experts_[layer][site == AdapterSite::kExpertDown ? 1 : 0];
    return experts.empty() ? std::span<const LoraDelta>() : experts[expert];
  }
  bool has_experts(int layer) const {
    return !experts_[layer][0].empty() || !experts_[layer][1].empty();
  }

 private:
  friend class AdapterReader;
  using Sites = std::array<LoraDelta, kNumAdapterSites>;
  // By expert.
  using ExpertDeltas = std::vector<std::vector<LoraDelta>>;

  Adapter() = default;

  std::vector<std::byte> tensors_;                    // the file, whose matrices the deltas are
  std::vector<std::vector<std::byte>> copies_;        // of those that lie misaligned there
  std::vector<Sites> sites_;                          // [layers + 1], outside the layers first
  std::vector<std::array<ExpertDeltas, 2>> experts_;  // [layers], gate_up_proj and down_proj
  uint64_t digest_ = 0;
  int max_rank_ = 0;
  int num_modules_ = 0;
  int num_ignored_ = 0;
};

// Bytes that an adapter's tensors can have at most.
int64_t MaxAdapterBytes(const ModelPlan& plan, int max_rank);

}  // namespace lapidary
