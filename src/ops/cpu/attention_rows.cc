#include <algorithm>

#include "base/check.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/kv_codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_rows.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/sum_lanes-inl.h"
// clang-format on

// A query is one head of one row. Both products are tiles of queries over a block of keys, and a
// tile's accumulators follow the chains of AttendRow: a score is summed over the dims in vectors
// and then over the lanes, a value over the keys upwards from the row's first.

#ifndef LAPIDARY_OPS_CPU_ATTENTION_ROWS
#define LAPIDARY_OPS_CPU_ATTENTION_ROWS
namespace lapidary::cpu {

// Their values, packed, stay in the second-level cache for all queries of a block.
constexpr int64_t kBlockKeys = 64;

// Keys [begin, begin + count) of all that any row sees.
struct KeyBlock {
  int64_t begin;
  int64_t count;
  const float* entries[kBlockKeys];
};

// One call of AttendRows.
struct RowsTask {
  KvEntryPlan entry;
  std::span<const AttentionRow> rows;
  int num_heads;
  int64_t num_keys;  // that any row sees
  float* scores;     // [queries, num_keys], then their softmax's numerators
  float* values;     // a block's values as WeighBlock reads them

  int64_t num_queries() const { return static_cast<int64_t>(rows.size()) * num_heads; }
  const AttentionRow& RowOf(int64_t query) const { return rows[query / num_heads]; }
  const float* QueryAt(int64_t query) const {
    return RowOf(query).q + query % num_heads * entry.key_len;
  }
  float* OutAt(int64_t query) const {
    return RowOf(query).out + query % num_heads * entry.value_len;
  }
};

}  // namespace lapidary::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

// Accumulators, one operand's vectors and one vector of the other fill the registers: 16, or
// AVX-512's 32. Fewer than 12 accumulators would not cover the latency of the additions.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3;
constexpr int kTileKeys = 4;
constexpr int kScoreQueries = kManyRegisters ? 6 : 3;
constexpr int kWeighQueries = 6;
constexpr int kWeighVecs = kManyRegisters ? 4 : 2;

// Dims of a value that are weighed as vectors; AttendRow has the same number.
HWY_INLINE int64_t PanelDims() { return kWeighVecs * static_cast<int64_t>(hn::Lanes(Floats())); }

// scores[query][key] for kQueries queries and kKeys keys.
template <int kQueries, int kKeys>
HWY_NOINLINE void ScoreTile(const float* const* HWY_RESTRICT queries,
                            const float* const* HWY_RESTRICT keys, int64_t dim,
                            float* HWY_RESTRICT scores, int64_t scores_stride) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* q[kQueries];
  const float* k[kKeys];
  HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) q[query] = queries[query];
  HWY_UNROLL(8) for (int key = 0; key < kKeys; ++key) k[key] = keys[key];
  FloatVec acc[kQueries][kKeys];
  HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) {
    HWY_UNROLL(8) for (int key = 0; key < kKeys; ++key) acc[query][key] = hn::Zero(d);
  }
  int64_t idx = 0;
  for (; idx + lanes <= dim; idx += lanes) {
    FloatVec query_vecs[kQueries];
    HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) {
      query_vecs[query] = hn::LoadU(d, q[query] + idx);
    }
    HWY_UNROLL(8) for (int key = 0; key < kKeys; ++key) {
      const FloatVec key_vec = hn::LoadU(d, k[key] + idx);
      HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) {
        acc[query][key] = hn::MulAdd(key_vec, query_vecs[query], acc[query][key]);
      }
    }
  }
  HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) {
    float sums[4];
    SumLanesOfFour(d, acc[query][0], acc[query][kKeys > 1 ? 1 : 0], acc[query][kKeys > 2 ? 2 : 0],
                   acc[query][kKeys > 3 ? 3 : 0], sums);
    for (int key = 0; key < kKeys; ++key) {
      float score = sums[key];
      for (int64_t tail = idx; tail < dim; ++tail) score += k[key][tail] * q[query][tail];
      scores[query * scores_stride + key] = score;
    }
  }
}

template <int kQueries = kScoreQueries>
void ScoreTileAnyQueries(int64_t num_queries, const float* const* queries, const float* const* keys,
                         int64_t num_keys, int64_t dim, float* scores, int64_t scores_stride) {
  if (num_queries == kQueries) {
    if (num_keys == kTileKeys) {
      ScoreTile<kQueries, kTileKeys>(queries, keys, dim, scores, scores_stride);
    } else {
      for (int64_t key = 0; key < num_keys; ++key) {
        ScoreTile<kQueries, 1>(queries, keys + key, dim, scores + key, scores_stride);
      }
    }
  } else if constexpr (kQueries > 1) {
    ScoreTileAnyQueries<kQueries - 1>(num_queries, queries, keys, num_keys, dim, scores,
                                      scores_stride);
  }
}

// The scores of all queries against a block of keys, and of some that a query does not see.
void ScoreBlock(const RowsTask& task, const KeyBlock& block) {
  const int64_t dim = task.entry.key_len;
  const float* keys[kBlockKeys];
  for (int64_t key = 0; key < block.count; ++key) {
    keys[key] = block.entries[key] + task.entry.key_offset;
  }
  for (int64_t key = 0; key < block.count; key += kTileKeys) {
    const int64_t num_keys = std::min<int64_t>(kTileKeys, block.count - key);
    for (int64_t query = 0; query < task.num_queries(); query += kScoreQueries) {
      const int64_t count = std::min<int64_t>(kScoreQueries, task.num_queries() - query);
      if (task.RowOf(query + count - 1).end <= block.begin + key ||
          task.RowOf(query).begin >= block.begin + key + num_keys) {
        continue;  // Rows ascend: none of these sees any of these keys.
      }
      const float* queries[kScoreQueries];
      for (int64_t idx = 0; idx < count; ++idx) queries[idx] = task.QueryAt(query + idx);
      ScoreTileAnyQueries(count, queries, keys + key, num_keys, dim,
                          task.scores + query * task.num_keys + block.begin + key, task.num_keys);
    }
  }
}

// task.values: [dims / panel][keys of the block][panel], the whole panels of the block's values.
void PackValues(const RowsTask& task, const KeyBlock& block) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t panel = PanelDims();
  for (int64_t key = 0; key < block.count; ++key) {
    for (int64_t dim = 0; dim + panel <= task.entry.value_len; dim += panel) {
      float* to = task.values + dim * block.count + key * panel;
      for (int64_t idx = 0; idx < panel; idx += lanes) {
        hn::StoreU(hn::LoadU(d, block.entries[key] + dim + idx), d, to + idx);
      }
    }
  }
}

// out[query][panel] += weights[query][key] * values[key][panel] for `count` keys.
template <int kQueries>
HWY_NOINLINE void WeighTile(const float* HWY_RESTRICT weights, int64_t weights_stride,
                            const float* HWY_RESTRICT values, int64_t count,
                            float* const* HWY_RESTRICT out) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVec acc[kQueries][kWeighVecs];
  HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) {
    HWY_UNROLL(8) for (int vec = 0; vec < kWeighVecs; ++vec) {
      acc[query][vec] = hn::LoadU(d, out[query] + vec * lanes);
    }
  }
  for (int64_t key = 0; key < count; ++key) {
    FloatVec vecs[kWeighVecs];
    HWY_UNROLL(8) for (int vec = 0; vec < kWeighVecs; ++vec) {
      vecs[vec] = hn::LoadU(d, values + vec * lanes);
    }
    HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) {
      const FloatVec weight = hn::Set(d, weights[query * weights_stride + key]);
      HWY_UNROLL(8) for (int vec = 0; vec < kWeighVecs; ++vec) {
        acc[query][vec] = hn::MulAdd(weight, vecs[vec], acc[query][vec]);
      }
    }
    values += kWeighVecs * lanes;
  }
  HWY_UNROLL(8) for (int query = 0; query < kQueries; ++query) {
    HWY_UNROLL(8) for (int vec = 0; vec < kWeighVecs; ++vec) {
      hn::StoreU(acc[query][vec], d, out[query] + vec * lanes);
    }
  }
}

template <int kQueries = kWeighQueries>
void WeighTileAnyQueries(int64_t num_queries, const float* weights, int64_t weights_stride,
                         const float* values, int64_t count, float* const* out) {
  if (num_queries == kQueries) {
    WeighTile<kQueries>(weights, weights_stride, values, count, out);
  } else if constexpr (kQueries > 1) {
    WeighTileAnyQueries<kQueries - 1>(num_queries, weights, weights_stride, values, count, out);
  }
}

// The dims behind the last whole panel, one by one.
void WeighRest(const RowsTask& task, const KeyBlock& block, int64_t query, int64_t begin,
               int64_t end) {
  const float* weights = task.scores + query * task.num_keys;
  float* out = task.OutAt(query);
  for (int64_t dim = task.entry.value_len / PanelDims() * PanelDims(); dim < task.entry.value_len;
       ++dim) {
    float sum = out[dim];
    for (int64_t key = begin; key < end; ++key) {
      sum += weights[key] * block.entries[key - block.begin][dim];
    }
    out[dim] = sum;
  }
}

// The keys [begin, end), as far as they lie in the block, for `count` queries that see them all.
void WeighKeys(const RowsTask& task, const KeyBlock& block, int64_t query, int64_t count,
               int64_t begin, int64_t end) {
  begin = std::max(begin, block.begin);
  end = std::min(end, block.begin + block.count);
  if (begin >= end) return;
  const int64_t panel = PanelDims();
  for (int64_t dim = 0; dim + panel <= task.entry.value_len; dim += panel) {
    float* out[kWeighQueries];
    for (int64_t idx = 0; idx < count; ++idx) out[idx] = task.OutAt(query + idx) + dim;
    WeighTileAnyQueries(count, task.scores + query * task.num_keys + begin, task.num_keys,
                        task.values + dim * block.count + (begin - block.begin) * panel,
                        end - begin, out);
  }
  for (int64_t idx = 0; idx < count; ++idx) WeighRest(task, block, query + idx, begin, end);
}

// Adds what a block of keys is to the outputs. Neighbouring queries see nearly the same keys: those
// that all of a tile see are weighed together, the few before and behind for each query.
void WeighBlock(const RowsTask& task, const KeyBlock& block) {
  PackValues(task, block);
  for (int64_t query = 0; query < task.num_queries(); query += kWeighQueries) {
    const int64_t count = std::min<int64_t>(kWeighQueries, task.num_queries() - query);
    const int64_t common_begin = task.RowOf(query + count - 1).begin;
    const int64_t common_end = std::max(common_begin, task.RowOf(query).end);
    for (int64_t idx = query; idx < query + count; ++idx) {
      const AttentionRow& row = task.RowOf(idx);
      WeighKeys(task, block, idx, 1, row.begin, std::min(row.end, common_begin));
    }
    WeighKeys(task, block, query, count, common_begin, common_end);
    for (int64_t idx = query; idx < query + count; ++idx) {
      const AttentionRow& row = task.RowOf(idx);
      WeighKeys(task, block, idx, 1, common_end, row.end);
    }
  }
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(ScoreBlock);
HWY_EXPORT(WeighBlock);

namespace {

// Where an entry's floats are: in place, or at `decoded` [entry_len], where they are put.
const float* FloatsOf(const KeySegment& segment, int64_t key, const KvEntryPlan& entry,
                      KvFormat format, float* decoded) {
  if (format == KvFormat::kF32) return segment.floats() + key * segment.stride;
  DecodeKvEntry(
      format, entry,
      static_cast<const std::byte*>(segment.first) + key * segment.stride * KvElementBytes(format),
      segment.scales + key * NumKvScales(format, entry), decoded);
  return decoded;
}

// body(block) for the keys of the segments, block by block. `decoded` [kBlockKeys, entry_len]: room
// for the entries of a block whose format is not f32.
template <typename Body>
void ForEachBlock(std::span<const KeySegment> segments, const KvEntryPlan& entry, KvFormat format,
                  float* decoded, const Body& body) {
  KeyBlock block{.begin = 0, .count = 0, .entries = {}};
  for (const KeySegment& segment : segments) {
    for (int64_t key = 0; key < segment.count; ++key) {
      block.entries[block.count] =
          FloatsOf(segment, key, entry, format, decoded + block.count * entry.entry_len);
      ++block.count;
      if (block.count < kBlockKeys) continue;
      body(block);
      block.begin += block.count;
      block.count = 0;
    }
  }
  if (block.count > 0) body(block);
}

float* Aligned(std::vector<float>& buffer, int64_t count) {
  constexpr uintptr_t kLine = 64;
  if (static_cast<int64_t>(buffer.size()) < count + 16) buffer.resize(count + 16);
  const uintptr_t address = reinterpret_cast<uintptr_t>(buffer.data());
  return reinterpret_cast<float*>((address + kLine - 1) / kLine * kLine);
}

}  // namespace

void AttendRows(std::span<const KeySegment> segments, const KvEntryPlan& entry, int num_heads,
                std::span<const AttentionRow> rows, AttentionScratch& scratch, KvFormat format) {
  int64_t num_keys = 0;
  for (const KeySegment& segment : segments) num_keys += segment.count;
  for (size_t row = 0; row < rows.size(); ++row) {
    CHECK(0 <= rows[row].begin && rows[row].begin < rows[row].end && rows[row].end <= num_keys);
    CHECK(row == 0 ||
          (rows[row - 1].begin <= rows[row].begin && rows[row - 1].end <= rows[row].end));
  }
  RowsTask task{.entry = entry,
                .rows = rows,
                .num_heads = num_heads,
                .num_keys = num_keys,
                .scores = nullptr,
                .values = Aligned(scratch.values, kBlockKeys * entry.value_len)};
  task.scores = Aligned(scratch.scores, task.num_queries() * num_keys);

  float* const decoded =
      format == KvFormat::kF32 ? nullptr : Aligned(scratch.decoded, kBlockKeys * entry.entry_len);
  ForEachBlock(segments, entry, format, decoded, [&](const KeyBlock& block) {
    HWY_DYNAMIC_DISPATCH(ScoreBlock)(task, block);
  });
  std::vector<float>& inverse_sums = scratch.inverse_sums;
  inverse_sums.resize(task.num_queries());
  for (int64_t query = 0; query < task.num_queries(); ++query) {
    const AttentionRow& row = task.RowOf(query);
    inverse_sums[query] =
        1.0f / ExpMinusMax(task.scores + query * num_keys + row.begin, row.end - row.begin);
    std::fill_n(task.OutAt(query), entry.value_len, 0.0f);
  }
  ForEachBlock(segments, entry, format, decoded, [&](const KeyBlock& block) {
    HWY_DYNAMIC_DISPATCH(WeighBlock)(task, block);
  });
  for (int64_t query = 0; query < task.num_queries(); ++query) {
    Scale(task.OutAt(query), inverse_sums[query], entry.value_len, task.OutAt(query));
  }
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
