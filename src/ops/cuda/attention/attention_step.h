// A step of attention for tests: keys and queries that are functions of their places, the call on
// the device, its result in double precision.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/attention/attention.h"
#include "ops/cuda/test_buffer.h"

namespace lapidary::cuda {

inline constexpr KvEntryPlan kSeparate256 = {
    .value_len = 256, .key_offset = 256, .key_len = 256, .entry_len = 512};
inline constexpr KvEntryPlan kSeparate512 = {
    .value_len = 512, .key_offset = 512, .key_len = 512, .entry_len = 1024};
inline constexpr KvEntryPlan kShared512 = {
    .value_len = 512, .key_offset = 128, .key_len = 512, .entry_len = 640};
inline constexpr KvEntryPlan kForms[] = {kSeparate256, kSeparate512, kShared512};

inline constexpr uint16_t kNan = 0x7fc1;

inline float ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Random numbers that cost little: some tests need a hundred million of them.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  // Uniform in [-range, range).
  uint16_t Next(float range) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return ToBf16((static_cast<float>(state_ >> 40) * 0x1p-23f - 1.0f) * range);
  }

 private:
  uint64_t state_;
};

struct AttentionSequenceSpec {
  int num_queries = 1;
  int first_position = 0;
  int num_cached = -1;  // -1: up to the first query
  uint64_t seed = 0;    // of its keys and queries; 0: its index in the step + 1
  // Queries whose positions lie in it see each other both ways.
  int image_begin = 0;
  int image_end = 0;

  int cached() const { return num_cached >= 0 ? num_cached : first_position; }
  // Keys that a query sees behind its own.
  int KeysAhead(int position) const {
    return position >= image_begin && position < image_end ? image_end - 1 - position : 0;
  }
  int num_keys() const { return std::max(cached(), first_position + num_queries); }
};

struct AttentionStepSpec {
  KvEntryPlan entry;
  AttentionGeometry geometry;
  int tokens_per_page = 16;
  std::vector<AttentionSequenceSpec> sequences;
  float score_range = 6.0f;    // scores are of this order
  bool rising_scores = false;  // later keys score higher: every tile moves the maximum
};

// A key's entry and a query's row are functions of the sequence's seed and the position, so a
// sequence can be met again in another step.
inline void FillEntry(const AttentionStepSpec& spec, uint64_t seed, int key, int kv_head,
                      uint16_t* entry) {
  Noise noise(seed * 1000003 + key * 31 + kv_head);
  for (int idx = 0; idx < spec.entry.entry_len; ++idx) entry[idx] = noise.Next(1.0f);
  if (spec.rising_scores) {
    // Queries carry one in this dim.
    const int dim = spec.entry.key_offset + spec.entry.key_len - 1;
    entry[dim] = ToBf16(static_cast<float>(key) * 0.25f);
  }
}

inline void FillQuery(const AttentionStepSpec& spec, uint64_t seed, int position, int head,
                      uint16_t* query) {
  Noise noise(seed * 7368787 + position * 131 + head + 5);
  const float range = spec.score_range * 3.0f / std::sqrt(static_cast<float>(spec.entry.key_len));
  for (int idx = 0; idx < spec.entry.key_len; ++idx) query[idx] = noise.Next(range);
  if (spec.rising_scores) query[spec.entry.key_len - 1] = ToBf16(1.0f);
}

// One step on the device: what is not a key of some visible window is NaN, and pages that must not
// be touched have ids that fault.
class AttentionStep {
 public:
  explicit AttentionStep(const AttentionStepSpec& spec) : spec_(spec) {
    const KvEntryPlan& entry = spec.entry;
    const int kv_heads = spec.geometry.num_kv_heads;
    const int tokens = spec.tokens_per_page;
    constexpr int32_t kNoPage = 0x3fffffff;
    layer_offset_ = 256;
    page_values_ = 128 + static_cast<int64_t>(kv_heads) * tokens * entry.entry_len + 64;

    std::vector<int32_t> page_ids = {kNoPage};
    int num_pages = 1;
    int num_new = 3;  // rows of nobody
    int num_queries = 2;
    for (const AttentionSequenceSpec& sequence : spec.sequences) {
      const int first_key = FirstKey(sequence);
      const int num_blocks = (sequence.cached() + tokens - 1) / tokens;
      sequences_.push_back({.first_query = num_queries,
                            .num_queries = sequence.num_queries,
                            .first_position = sequence.first_position,
                            .num_cached = sequence.cached(),
                            .first_new = num_new,
                            .table_base = static_cast<int32_t>(page_ids.size())});
      for (int block = 0; block < num_blocks; ++block) {
        page_ids.push_back((block + 1) * tokens > first_key ? num_pages++ : kNoPage);
      }
      num_queries += sequence.num_queries + 1;  // a row of nobody between two sequences
      num_new += sequence.num_keys() - sequence.cached() + 1;
    }
    // Pages in shuffled order, so that neighbours in a sequence are none in memory.
    std::vector<int32_t> order(num_pages);
    for (int idx = 0; idx < num_pages; ++idx) order[idx] = idx;
    std::shuffle(order.begin() + 1, order.end(), std::mt19937(3));
    for (int32_t& page : page_ids) {
      if (page != kNoPage) page = order[page];
    }

    pool_.assign(page_values_ * num_pages, kNan);
    new_entries_.assign(int64_t{num_new} * kv_heads * entry.entry_len, kNan);
    queries_.assign(int64_t{num_queries} * spec.geometry.num_heads * entry.key_len, kNan);
    out_size_ = int64_t{num_queries} * spec.geometry.num_heads * entry.value_len;
    for (int idx = 0; idx < spec.sequences.size(); ++idx) {
      const AttentionSequenceSpec& sequence = spec.sequences[idx];
      for (int key = FirstKey(sequence); key < sequence.num_keys(); ++key) {
        for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
          uint16_t* at = nullptr;
          if (key < sequence.cached()) {
            const int page = page_ids[sequences_[idx].table_base + key / tokens];
            at = pool_.data() + page * page_values_ + layer_offset_ / 2 +
                 (int64_t{kv_head} * tokens + key % tokens) * entry.entry_len;
          } else {
            const int64_t row = sequences_[idx].first_new + key - sequence.cached();
            at = new_entries_.data() + (row * kv_heads + kv_head) * entry.entry_len;
          }
          FillEntry(spec, Seed(idx), key, kv_head, at);
        }
      }
      for (int query = 0; query < sequence.num_queries; ++query) {
        const int ahead = sequence.KeysAhead(sequence.first_position + query);
        if (ahead > 0) {
          keys_ahead_.resize(num_queries, 0);
          keys_ahead_[sequences_[idx].first_query + query] = ahead;
        }
        for (int head = 0; head < spec.geometry.num_heads; ++head) {
          const int64_t row = sequences_[idx].first_query + query;
          FillQuery(spec, Seed(idx), sequence.first_position + query, head,
                    queries_.data() + (row * spec.geometry.num_heads + head) * entry.key_len);
        }
      }
    }
    device_pool_ = std::make_unique<TestBuffer<uint16_t>>(pool_);
    device_new_ = std::make_unique<TestBuffer<uint16_t>>(new_entries_);
    device_queries_ = std::make_unique<TestBuffer<uint16_t>>(queries_);
    device_page_ids_ = std::make_unique<TestBuffer<int32_t>>(page_ids);
    device_sequences_ = std::make_unique<TestBuffer<AttentionSequence>>(sequences_);
    device_out_ = std::make_unique<TestBuffer<uint16_t>>(out_size_ + 2 * kGuard);
  }

  struct RunOptions {
    AttentionWorkOptions work = {.max_partials = 4096};
    int num_blocks = 0;  // planned for; 0: as many as run
    bool dependent = false;
    int times = 1;
  };

  // The rows in order, without those of nobody: [queries of all sequences, heads, value_len].
  std::vector<uint16_t> Run(const RunOptions& options) {
    AttentionWorkOptions work = options.work;
    const int num_blocks =
        AttentionBlocks(TestDevice(), spec_.entry, work.tile_rows, work.batch_invariant);
    work.num_blocks = options.num_blocks > 0 ? options.num_blocks : num_blocks;
    std::vector<AttentionItem> items;
    PlanAttentionWork(spec_.geometry, sequences_, work, items, {}, keys_ahead_);
    num_splits_ = 1;
    for (const AttentionItem& item : items) {
      num_splits_ = std::max<int>(num_splits_, item.num_splits);
    }
    TestBuffer<AttentionItem> device_items(std::max<size_t>(items.size(), num_blocks));
    device_items.Upload(items);
    TestBuffer<int32_t> num_items(std::vector<int32_t>{static_cast<int32_t>(items.size())});
    const int64_t partial_floats =
        AttentionPartialBytes(TestDevice().num_sms, work.max_partials, work.batch_invariant) / 4;
    TestBuffer<int32_t> keys_ahead(keys_ahead_.empty() ? std::vector<int32_t>(1) : keys_ahead_);
    // Nothing may rest on what the scratch holds.
    TestBuffer<float> partials(partial_floats);
    TestBuffer<int32_t> counters(std::vector<int32_t>(work.max_partials, 0));
    device_out_->Upload(std::vector<uint16_t>(out_size_ + 2 * kGuard, kNan));

    const AttentionCall call = {.geometry = spec_.geometry,
                                .entry = spec_.entry,
                                .queries = reinterpret_cast<const bf16*>(device_queries_->get()),
                                .out = reinterpret_cast<bf16*>(device_out_->get() + kGuard),
                                .pool = reinterpret_cast<const std::byte*>(device_pool_->get()),
                                .page_bytes = page_values_ * 2,
                                .layer_offset = layer_offset_,
                                .tokens_per_page = spec_.tokens_per_page,
                                .new_entries = reinterpret_cast<const bf16*>(device_new_->get()),
                                .page_ids = device_page_ids_->get(),
                                .sequences = device_sequences_->get(),
                                .items = device_items.get(),
                                .num_items = num_items.get(),
                                .keys_ahead = keys_ahead_.empty() ? nullptr : keys_ahead.get(),
                                .tile_rows = work.tile_rows,
                                .batch_invariant = work.batch_invariant,
                                .partials = partials.get(),
                                .counters = counters.get()};
    for (int time = 0; time < options.times; ++time) {
      RunAttention(TestContext(nullptr, options.dependent), call);
    }
    LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
    for (const int32_t counter : counters.Download()) EXPECT_EQ(counter, 0);
    return TakeRows(device_out_->Download());
  }

  // What was written, and nothing else was.
  std::vector<uint16_t> TakeRows(const std::vector<uint16_t>& out) const {
    const int64_t row_values = int64_t{spec_.geometry.num_heads} * spec_.entry.value_len;
    std::vector<bool> is_row(out_size_ / row_values, false);
    std::vector<uint16_t> rows;
    for (const AttentionSequence& sequence : sequences_) {
      for (int query = 0; query < sequence.num_queries; ++query) {
        const int64_t row = sequence.first_query + query;
        is_row[row] = true;
        const auto at = out.begin() + kGuard + row * row_values;
        rows.insert(rows.end(), at, at + row_values);
      }
    }
    int64_t num_spoiled = 0;
    for (int64_t idx = 0; idx < out.size(); ++idx) {
      const int64_t row = idx < kGuard ? -1 : (idx - kGuard) / row_values;
      if ((row >= 0 && row < is_row.size() && is_row[row]) || out[idx] == kNan) continue;
      ++num_spoiled;
    }
    EXPECT_EQ(num_spoiled, 0) << "values were written outside of the rows";
    int64_t num_not_finite = 0;
    for (const uint16_t value : rows) num_not_finite += !std::isfinite(ToFloat(value));
    EXPECT_EQ(num_not_finite, 0) << "of " << rows.size();
    return rows;
  }

  // Largest relative error of a head's output, over all rows or as many as the budget allows.
  double WorstError(const std::vector<uint16_t>& rows) {
    if (references_.empty()) ComputeReferences();
    double worst = 0.0;
    for (const auto& [row, reference] : references_) {
      const uint16_t* out = rows.data() + row * static_cast<int64_t>(reference.size());
      for (int64_t head = 0; head < spec_.geometry.num_heads; ++head) {
        double error = 0.0;
        double norm = 0.0;
        for (int64_t idx = head * spec_.entry.value_len; idx < (head + 1) * spec_.entry.value_len;
             ++idx) {
          error += std::pow(ToFloat(out[idx]) - reference[idx], 2);
          norm += std::pow(reference[idx], 2);
        }
        const double relative = std::sqrt(error / norm);
        worst = std::isnan(relative) ? 1e9 : std::max(worst, relative);
      }
    }
    return worst;
  }

  int num_splits() const { return num_splits_; }  // most of any tile in the last run
  const std::vector<AttentionSequence>& sequences() const { return sequences_; }

 private:
  static constexpr int kGuard = 4096;

  uint64_t Seed(int idx) const {
    return spec_.sequences[idx].seed != 0 ? spec_.sequences[idx].seed : idx + 1;
  }

  // The first key that any query of the sequence sees.
  int FirstKey(const AttentionSequenceSpec& sequence) const {
    return spec_.geometry.window > 0
               ? std::max(0, sequence.first_position - spec_.geometry.window + 1)
               : 0;
  }

  void ComputeReferences() {
    std::vector<std::pair<int, int>> candidates;  // (sequence, query)
    std::vector<int64_t> first_row = {0};
    for (int idx = 0; idx < spec_.sequences.size(); ++idx) {
      for (int query = 0; query < spec_.sequences[idx].num_queries; ++query) {
        candidates.push_back({idx, query});
      }
      first_row.push_back(first_row.back() + spec_.sequences[idx].num_queries);
    }
    // The last row of the step first: it is where bookkeeping ends.
    std::swap(candidates.front(), candidates.back());
    std::shuffle(candidates.begin() + 1, candidates.end(), std::mt19937(17));
    int64_t budget = 100'000'000;
    for (const auto& [sequence, query] : candidates) {
      if (budget < 0) break;
      const int position = spec_.sequences[sequence].first_position + query;
      references_.push_back({first_row[sequence] + query, Reference(sequence, position)});
      const int num_keys =
          spec_.geometry.window > 0 ? std::min(spec_.geometry.window, position + 1) : position + 1;
      budget -= int64_t{num_keys} * (spec_.entry.key_len + spec_.entry.value_len) *
                spec_.geometry.num_heads;
    }
  }

  // One row: [heads, value_len].
  std::vector<double> Reference(int sequence, int position) const {
    const KvEntryPlan& entry = spec_.entry;
    const int heads = spec_.geometry.heads_per_kv_head();
    const int first =
        spec_.geometry.window > 0 ? std::max(0, position - spec_.geometry.window + 1) : 0;
    std::vector<double> total(int64_t{spec_.geometry.num_heads} * entry.value_len, 0.0);
    std::vector<uint16_t> bits(entry.entry_len);
    std::vector<double> values(entry.entry_len);
    std::vector<double> queries(int64_t{heads} * entry.key_len);
    for (int kv_head = 0; kv_head < spec_.geometry.num_kv_heads; ++kv_head) {
      for (int head = 0; head < heads; ++head) {
        FillQuery(spec_, Seed(sequence), position, kv_head * heads + head, bits.data());
        for (int dim = 0; dim < entry.key_len; ++dim) {
          queries[head * entry.key_len + dim] = ToFloat(bits[dim]);
        }
      }
      std::vector<double> maximum(heads, -std::numeric_limits<double>::infinity());
      std::vector<double> sum(heads, 0.0);
      const int last = position + spec_.sequences[sequence].KeysAhead(position);
      for (int key = first; key <= last; ++key) {
        FillEntry(spec_, Seed(sequence), key, kv_head, bits.data());
        for (int idx = 0; idx < entry.entry_len; ++idx) values[idx] = ToFloat(bits[idx]);
        for (int head = 0; head < heads; ++head) {
          double lanes[8] = {};
          for (int dim = 0; dim < entry.key_len; dim += 8) {
            for (int lane = 0; lane < 8; ++lane) {
              lanes[lane] += queries[head * entry.key_len + dim + lane] *
                             values[entry.key_offset + dim + lane];
            }
          }
          double score = 0.0;
          for (const double lane : lanes) score += lane;
          double* out = total.data() + int64_t{kv_head * heads + head} * entry.value_len;
          if (score > maximum[head]) {
            const double shrink = std::exp(maximum[head] - score);
            for (int dim = 0; dim < entry.value_len; ++dim) out[dim] *= shrink;
            sum[head] *= shrink;
            maximum[head] = score;
          }
          const double weight = std::exp(score - maximum[head]);
          sum[head] += weight;
          for (int dim = 0; dim < entry.value_len; ++dim) out[dim] += weight * values[dim];
        }
      }
      for (int head = 0; head < heads; ++head) {
        double* out = total.data() + int64_t{kv_head * heads + head} * entry.value_len;
        for (int dim = 0; dim < entry.value_len; ++dim) out[dim] /= sum[head];
        if (!entry.k_is_v()) continue;
        const std::vector<double> columns(out, out + entry.value_len);
        for (int dim = 0; dim < entry.value_len; ++dim) {
          out[dim] = columns[ColumnOfDim(entry.value_len, entry.key_offset / 2, dim)];
        }
      }
    }
    return total;
  }

  const AttentionStepSpec spec_;
  int64_t layer_offset_ = 0;
  int64_t page_values_ = 0;
  int64_t out_size_ = 0;
  int num_splits_ = 1;
  std::vector<std::pair<int64_t, std::vector<double>>> references_;  // (row, its heads' outputs)
  std::vector<AttentionSequence> sequences_;
  std::vector<int32_t> keys_ahead_;  // [queries]; empty: no image
  std::vector<uint16_t> pool_;
  std::vector<uint16_t> new_entries_;
  std::vector<uint16_t> queries_;
  std::unique_ptr<TestBuffer<uint16_t>> device_pool_;
  std::unique_ptr<TestBuffer<uint16_t>> device_new_;
  std::unique_ptr<TestBuffer<uint16_t>> device_queries_;
  std::unique_ptr<TestBuffer<uint16_t>> device_out_;
  std::unique_ptr<TestBuffer<int32_t>> device_page_ids_;
  std::unique_ptr<TestBuffer<AttentionSequence>> device_sequences_;
};

}  // namespace lapidary::cuda
