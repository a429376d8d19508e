// The program of a resident step, as it lies in device memory: a header, then a phase for each
// matrix.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/resident/resident_scratch.h"
#include "ops/cuda/resident/resident_step.h"
#include "ops/cuda/resident/resident_tiles.h"

namespace lapidary::cuda {

// Attention of one layer, before the phase of its output projection.
struct ResidentAttention {
  const uint64_t* raw = nullptr;  // packets of q, k, v
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* owner_k_norm = nullptr;
  const float2* rope = nullptr;
  uint64_t* kept = nullptr;  // packets of the KV's new entry, [num_kv_heads, entry_len]
  int64_t layer_offset = 0;
  int rotary_pairs = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // 0: none
  int window = 0;
  int group = 0;
  int entry_len = 0;
  int phases_since_owner = 0;   // from the phase in which the owner of the KV made it
  bool keys_are_apart = false;  // from the values, in an entry
  bool owns_kv = false;
  bool k_is_v = false;
};

// The same for all layers of a group.
struct ResidentKvGroup {
  int num_heads = 0;
  int num_kv_heads = 0;
  int entry_len = 0;
  int window = 0;

  bool operator==(const ResidentKvGroup&) const = default;
};

// What loading the cached entries of a phase's attention takes.
struct alignas(16) ResidentKv {
  int64_t layer_offset = 0;
  int entry_len = 0;  // 0: no attention
  int16_t group = 0;
  bool chooses_experts = false;  // before its weights are known
};

enum class ResidentFinish : int { kSend, kGatedGelu, kGeluMul, kLogits };

// Input, product, result. The input comes from the phase before: packets as they are, or what is
// added to the residual stream before that is normed (ResidualUpdate of linear.h).
struct ResidentPhase {
  ResidentMatrix matrix;
  const uint64_t* input = nullptr;  // packets; null: nothing is added
  const float* post_norm = nullptr;
  const float* pre_norm = nullptr;  // null: the residual stream itself
  float scale = 1.0f;
  bool reads_residual = false;
  TileType expert_format = TileType::kBf16;  // of the experts' gate and up, whose input it makes
  ResidentFinish finish = ResidentFinish::kSend;
  uint64_t* output = nullptr;        // packets
  const bf16* multiplier = nullptr;  // [num_rows], kGeluMul
  ResidentAttention attention;       // gives the input, if any
};
static_assert(sizeof(ResidentPhase) % 16 == 0);

// What the phases of a layer with experts do besides. Its phases: q, k and v; output; dense gate
// and up; dense down; the chosen experts' gate and up; their down. What is not named is null.
struct alignas(16) ResidentExperts {
  // Dense gate and up, and the experts': one f32 value in each of these packets.
  uint64_t* logits = nullptr;
  // Dense gate and up: it makes the logits, and the experts' input from the same row.
  const bf16* router = nullptr;         // [experts, hidden]
  const float* router_scale = nullptr;  // [hidden]
  const float* pre_norm = nullptr;      // [hidden]
  // The experts' gate and up: before it the choice is made.
  const float* per_expert_scale = nullptr;  // [experts]
  // The next reader of the stream, whose input is the experts' part of the block: the other part,
  // and the norms of both.
  const uint64_t* dense = nullptr;
  const float* post_dense_norm = nullptr;
  const float* post_expert_norm = nullptr;
};
static_assert(sizeof(ResidentExperts) == 64);

// Phases from a layer's dense gate and up, or down, to where what it sends is used.
inline constexpr int kPhasesToChoice = 2;
inline constexpr int kPhasesToJoin = 3;

// What splits of attention leave for each other: packets of 16 bytes (resident_attention.cuh).
struct ResidentPartials {
  uint4* sums;     // [splits, kSplitSumBytes]
  uint4* weights;  // [splits, kSplitHeads]: maximum (of scores times log2 e), sum of P
};
// Its queries in shared memory: for matrix instructions on 8 of them or on all, 64 bytes apart for
// the banks.
__host__ __device__ constexpr int ResidentQueryPitch(int key_len) { return 2 * key_len + 64; }
__host__ __device__ constexpr int ResidentQueryBytes(int heads, int key_len) {
  return (heads > 8 ? kSplitHeads : 8) * ResidentQueryPitch(key_len);
}

// Behind it: phases; for the producer warp, their matrices once more, their KV and maps; what they
// do with experts.
struct alignas(128) ResidentProgram {
  ResidentPartials partials;
  ResidentKvGroup groups[kNumKvGroups];
  uint32_t* number;  // of the last exchange
  int hidden;
  int num_phases;
  int num_experts;  // 0: none
  int num_ranks;

  __host__ __device__ const ResidentPhase* phases() const {
    return reinterpret_cast<const ResidentPhase*>(this + 1);
  }
  __host__ __device__ const ResidentMatrix* matrices() const {
    return At<ResidentMatrix>(ResidentProgramLayout::Matrices(num_phases));
  }
  __host__ __device__ const ResidentKv* kv() const {
    return At<ResidentKv>(ResidentProgramLayout::Kv(num_phases));
  }
  __host__ __device__ const ResidentExperts* experts() const {
    return At<ResidentExperts>(ResidentProgramLayout::Experts(num_phases));
  }
  // Two for each phase: for tiles of the usual size, and for the last one.
  __host__ __device__ const CUtensorMap* maps() const {
    return At<CUtensorMap>(ResidentProgramLayout::Maps(num_phases));
  }

 private:
  template <typename T>
  __host__ __device__ const T* At(int64_t offset) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(this) + offset);
  }
};
static_assert(sizeof(ResidentProgram) == ResidentProgramLayout::kHeaderBytes &&
              sizeof(ResidentPhase) == ResidentProgramLayout::kPhaseBytes &&
              sizeof(ResidentMatrix) == ResidentProgramLayout::kMatrixBytes &&
              sizeof(ResidentKv) == ResidentProgramLayout::kKvBytes &&
              sizeof(ResidentExperts) == ResidentProgramLayout::kExpertBytes &&
              sizeof(CUtensorMap) == ResidentProgramLayout::kMapBytes);

}  // namespace lapidary::cuda
