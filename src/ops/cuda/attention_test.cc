#include "ops/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/device_probe.h"

namespace lapidary::cuda {
namespace {

constexpr KvEntryPlan kSeparate256 = {
    .value_len = 256, .key_offset = 256, .key_len = 256, .entry_len = 512};
constexpr KvEntryPlan kSeparate512 = {
    .value_len = 512, .key_offset = 512, .key_len = 512, .entry_len = 1024};
constexpr KvEntryPlan kShared512 = {
    .value_len = 512, .key_offset = 0, .key_len = 640, .entry_len = 640};
constexpr KvEntryPlan kForms[] = {kSeparate256, kSeparate512, kShared512};

constexpr uint16_t kNan = 0x7fc1;

float ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t ToBf16(float value) {
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

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    LAPIDARY_CUDA_CHECK(
        cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(1, size) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Write(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void Write(const std::vector<T>& values) {
    LAPIDARY_CUDA_CHECK(cudaMemcpy(data_, values.data(), std::min(size_, values.size()) * sizeof(T),
                                   cudaMemcpyHostToDevice));
  }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    LAPIDARY_CUDA_CHECK(
        cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  size_t size_;
};

struct SequenceSpec {
  int num_queries = 1;
  int first_position = 0;
  int num_cached = -1;  // -1: up to the first query
  uint64_t seed = 0;    // of its keys and queries; 0: its index in the step + 1

  int cached() const { return num_cached >= 0 ? num_cached : first_position; }
  int num_keys() const { return std::max(cached(), first_position + num_queries); }
};

struct StepSpec {
  KvEntryPlan entry;
  AttentionGeometry geometry;
  int tokens_per_page = 16;
  std::vector<SequenceSpec> sequences;
  float score_range = 6.0f;    // scores are of this order
  bool rising_scores = false;  // later keys score higher: every tile moves the maximum
};

// A key's entry and a query's row are functions of the sequence's seed and the position, so a
// sequence can be met again in another step.
void FillEntry(const StepSpec& spec, uint64_t seed, int key, int kv_head, uint16_t* entry) {
  Noise noise(seed * 1000003 + key * 31 + kv_head);
  for (int idx = 0; idx < spec.entry.entry_len; ++idx) entry[idx] = noise.Next(1.0f);
  if (spec.rising_scores) {
    // Queries carry one in this dim.
    const int dim = spec.entry.key_offset + spec.entry.key_len - 1;
    entry[dim] = ToBf16(static_cast<float>(key) * 0.25f);
  }
}

void FillQuery(const StepSpec& spec, uint64_t seed, int position, int head, uint16_t* query) {
  Noise noise(seed * 7368787 + position * 131 + head + 5);
  const float range = spec.score_range * 3.0f / std::sqrt(static_cast<float>(spec.entry.key_len));
  for (int idx = 0; idx < spec.entry.key_len; ++idx) query[idx] = noise.Next(range);
  if (spec.rising_scores) query[spec.entry.key_len - 1] = ToBf16(1.0f);
}

// One step on the device: what is not a key of some visible window is NaN, and pages that must not
// be touched have ids that fault.
class Step {
 public:
  explicit Step(const StepSpec& spec) : spec_(spec) {
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
    for (const SequenceSpec& sequence : spec.sequences) {
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
      const SequenceSpec& sequence = spec.sequences[idx];
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
        for (int head = 0; head < spec.geometry.num_heads; ++head) {
          const int64_t row = sequences_[idx].first_query + query;
          FillQuery(spec, Seed(idx), sequence.first_position + query, head,
                    queries_.data() + (row * spec.geometry.num_heads + head) * entry.key_len);
        }
      }
    }
    device_pool_ = std::make_unique<DeviceArray<uint16_t>>(pool_);
    device_new_ = std::make_unique<DeviceArray<uint16_t>>(new_entries_);
    device_queries_ = std::make_unique<DeviceArray<uint16_t>>(queries_);
    device_page_ids_ = std::make_unique<DeviceArray<int32_t>>(page_ids);
    device_sequences_ = std::make_unique<DeviceArray<AttentionSequence>>(sequences_);
    device_out_ = std::make_unique<DeviceArray<uint16_t>>(out_size_ + 2 * kGuard);
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
    work.num_blocks =
        options.num_blocks > 0 ? options.num_blocks : AttentionBlocks(spec_.entry, work.tile_rows);
    std::vector<AttentionItem> items;
    PlanAttentionWork(spec_.geometry, sequences_, work, items);
    num_splits_ = 1;
    for (const AttentionItem& item : items) {
      num_splits_ = std::max<int>(num_splits_, item.num_splits);
    }
    DeviceArray<AttentionItem> device_items(
        std::max<size_t>(items.size(), AttentionBlocks(spec_.entry, work.tile_rows)));
    device_items.Write(items);
    DeviceArray<int32_t> num_items(std::vector<int32_t>{static_cast<int32_t>(items.size())});
    const int64_t partial_floats =
        AttentionPartialBytes(work.max_partials, work.batch_invariant) / 4;
    // Nothing may rest on what the scratch holds.
    DeviceArray<float> partials(partial_floats);
    LAPIDARY_CUDA_CHECK(cudaMemset(partials.data(), 0xff, partial_floats * 4));
    DeviceArray<int32_t> counters(std::vector<int32_t>(work.max_partials, 0));
    device_out_->Write(std::vector<uint16_t>(out_size_ + 2 * kGuard, kNan));

    const AttentionCall call = {.geometry = spec_.geometry,
                                .entry = spec_.entry,
                                .queries = reinterpret_cast<const bf16*>(device_queries_->data()),
                                .out = reinterpret_cast<bf16*>(device_out_->data() + kGuard),
                                .pool = reinterpret_cast<const std::byte*>(device_pool_->data()),
                                .page_bytes = page_values_ * 2,
                                .layer_offset = layer_offset_,
                                .tokens_per_page = spec_.tokens_per_page,
                                .new_entries = reinterpret_cast<const bf16*>(device_new_->data()),
                                .page_ids = device_page_ids_->data(),
                                .sequences = device_sequences_->data(),
                                .items = device_items.data(),
                                .num_items = num_items.data(),
                                .tile_rows = work.tile_rows,
                                .batch_invariant = work.batch_invariant,
                                .partials = partials.data(),
                                .counters = counters.data()};
    for (int time = 0; time < options.times; ++time) {
      RunAttention({.stream = nullptr, .dependent = options.dependent}, call);
    }
    LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
    for (const int32_t counter : counters.Read()) EXPECT_EQ(counter, 0);
    return TakeRows(device_out_->Read());
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
  int FirstKey(const SequenceSpec& sequence) const {
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
      for (int key = first; key <= position; ++key) {
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
      }
    }
    return total;
  }

  const StepSpec spec_;
  int64_t layer_offset_ = 0;
  int64_t page_values_ = 0;
  int64_t out_size_ = 0;
  int num_splits_ = 1;
  std::vector<std::pair<int64_t, std::vector<double>>> references_;  // (row, its heads' outputs)
  std::vector<AttentionSequence> sequences_;
  std::vector<uint16_t> pool_;
  std::vector<uint16_t> new_entries_;
  std::vector<uint16_t> queries_;
  std::unique_ptr<DeviceArray<uint16_t>> device_pool_;
  std::unique_ptr<DeviceArray<uint16_t>> device_new_;
  std::unique_ptr<DeviceArray<uint16_t>> device_queries_;
  std::unique_ptr<DeviceArray<uint16_t>> device_out_;
  std::unique_ptr<DeviceArray<int32_t>> device_page_ids_;
  std::unique_ptr<DeviceArray<AttentionSequence>> device_sequences_;
};

std::vector<SequenceSpec> Decodes(const std::vector<int>& positions) {
  std::vector<SequenceSpec> sequences;
  for (const int position : positions) sequences.push_back({.first_position = position});
  return sequences;
}

// bf16 weights and a bf16 result: 2^-9 relative each, at random.
constexpr double kTolerance = 7e-3;

class AttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    const GpuList list = ListGpus();
    if (list.gpus.empty()) GTEST_SKIP() << "no GPU: " << list.problem;
  }

  // Runs the step split in several ways; each must agree with the reference.
  static void ExpectMatches(const StepSpec& spec, const std::string& what) {
    SCOPED_TRACE(what + ", value_len " + std::to_string(spec.entry.value_len) + ", key_len " +
                 std::to_string(spec.entry.key_len) + ", window " +
                 std::to_string(spec.geometry.window) + ", heads " +
                 std::to_string(spec.geometry.num_heads) + "/" +
                 std::to_string(spec.geometry.num_kv_heads) + ", page " +
                 std::to_string(spec.tokens_per_page));
    Step step(spec);
    EXPECT_LE(step.WorstError(step.Run({})), kTolerance) << "default";
    EXPECT_LE(step.WorstError(step.Run({.work = {.max_partials = 0}})), kTolerance) << "unsplit";
    EXPECT_LE(step.WorstError(step.Run(
                  {.work = {.max_partials = 8192, .min_split_keys = 32}, .num_blocks = 4000})),
              kTolerance)
        << "many splits";
    EXPECT_LE(step.WorstError(step.Run({.work = {.batch_invariant = true, .max_partials = 4096}})),
              kTolerance)
        << "batch-invariant";
  }
};

TEST_F(AttentionTest, DecodesEveryRemainder) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches(
        {.entry = entry,
         .geometry = {.num_heads = 16, .num_kv_heads = 2},
         .tokens_per_page = 16,
         .sequences = Decodes({0,  1,  2,   14,  15,  16,  30,  31,  32,  33,   62,   63,
                               64, 65, 100, 254, 255, 256, 511, 512, 513, 1000, 1023, 1024})},
        "decode");
  }
}

TEST_F(AttentionTest, DecodesLongSequences) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches({.entry = entry,
                   .geometry = {.num_heads = 8, .num_kv_heads = 1},
                   .tokens_per_page = 64,
                   .sequences = Decodes({4999, 2047, 3})},
                  "long decode");
  }
}

TEST_F(AttentionTest, TakesEveryNumberOfHeads) {
  for (const KvEntryPlan& entry : kForms) {
    for (int heads = 1; heads <= 16; ++heads) {
      ExpectMatches({.entry = entry,
                     .geometry = {.num_heads = heads * 2, .num_kv_heads = 2},
                     .tokens_per_page = 7,
                     .sequences = {{.first_position = 77},
                                   {.num_queries = 3, .first_position = 40},
                                   {.num_queries = 37, .first_position = 5}}},
                    "heads");
    }
  }
}

TEST_F(AttentionTest, SeesTheWindowAndNothingElse) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int window : {1, 3, 24, 512, 1024}) {
      for (const int tokens_per_page : {7, 16}) {
        ExpectMatches({.entry = entry,
                       .geometry = {.num_heads = 4, .num_kv_heads = 2, .window = window},
                       .tokens_per_page = tokens_per_page,
                       .sequences = {{.first_position = 0},
                                     {.first_position = window - 1},
                                     {.first_position = window},
                                     {.first_position = 1500},
                                     {.num_queries = 4, .first_position = 1533},
                                     {.num_queries = 70, .first_position = 1700},
                                     {.num_queries = 45, .first_position = 0}}},
                      "window");
      }
    }
  }
}

TEST_F(AttentionTest, PrefillsFromTheStartAndBehindAPrefix) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int heads : {2, 4, 8, 16}) {
      ExpectMatches({.entry = entry,
                     .geometry = {.num_heads = heads, .num_kv_heads = 1},
                     .tokens_per_page = 64,
                     .sequences = {{.num_queries = 333},
                                   {.num_queries = 1},
                                   {.num_queries = 100, .first_position = 450},
                                   {.num_queries = 65, .first_position = 1025}}},
                    "prefill");
    }
  }
}

TEST_F(AttentionTest, LongPrefillInAWindow) {
  for (const int tile_rows : {16, 64, 128}) {
    const StepSpec spec = {
        .entry = kSeparate256,
        .geometry = {.num_heads = 4, .num_kv_heads = 2, .window = 512},
        .tokens_per_page = 16,
        .sequences = {{.num_queries = 1800}, {.num_queries = 600, .first_position = 900}}};
    Step step(spec);
    EXPECT_LE(step.WorstError(step.Run({.work = {.max_partials = 4096, .tile_rows = tile_rows}})),
              kTolerance);
  }
}

TEST_F(AttentionTest, WideTilesMatch) {
  for (const int window : {0, 24}) {
    const StepSpec spec = {.entry = kSeparate256,
                           .geometry = {.num_heads = 8, .num_kv_heads = 2, .window = window},
                           .tokens_per_page = 16,
                           .sequences = {{.num_queries = 333},
                                         {.num_queries = 5, .first_position = 700},
                                         {.first_position = 300},
                                         {.num_queries = 31, .first_position = 99},
                                         {.num_queries = 12, .first_position = 40}}};
    Step step(spec);
    for (const bool invariant : {false, true}) {
      for (const int max_partials : {0, 4096}) {
        EXPECT_LE(step.WorstError(step.Run({.work = {.batch_invariant = invariant,
                                                     .max_partials = max_partials,
                                                     .tile_rows = 128,
                                                     .min_split_keys = 32}})),
                  kTolerance);
      }
    }
  }
}

TEST_F(AttentionTest, MixesPrefillDecodeAndVerifyRows) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int window : {0, 512}) {
      std::vector<SequenceSpec> sequences = {{.num_queries = 200, .first_position = 100},
                                             {.num_queries = 1}};  // padding: its own key alone
      for (int idx = 0; idx < 20; ++idx) {
        sequences.push_back({.num_queries = 1 + idx % 5, .first_position = 90 * idx});
      }
      ExpectMatches({.entry = entry,
                     .geometry = {.num_heads = 16, .num_kv_heads = 2, .window = window},
                     .tokens_per_page = 16,
                     .sequences = sequences},
                    "mixed");
    }
  }
}

TEST_F(AttentionTest, KeysMayBeAllCachedOrAllNew) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches({.entry = entry,
                   .geometry = {.num_heads = 8, .num_kv_heads = 2},
                   .tokens_per_page = 16,
                   .sequences = {{.first_position = 130, .num_cached = 131},
                                 {.first_position = 130, .num_cached = 0},
                                 {.num_queries = 5, .first_position = 130, .num_cached = 33},
                                 {.num_queries = 40, .first_position = 60, .num_cached = 100}}},
                  "cached");
  }
}

TEST_F(AttentionTest, HoldsWhenEveryTileMovesTheMaximum) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches(
        {.entry = entry,
         .geometry = {.num_heads = 4, .num_kv_heads = 1},
         .tokens_per_page = 16,
         .sequences = {{.first_position = 1200}, {.num_queries = 90, .first_position = 600}},
         .score_range = 2.0f,
         .rising_scores = true},
        "rising");
  }
}

TEST_F(AttentionTest, HoldsForLargeScores) {
  for (const KvEntryPlan& entry : kForms) {
    ExpectMatches(
        {.entry = entry,
         .geometry = {.num_heads = 4, .num_kv_heads = 1},
         .tokens_per_page = 16,
         .sequences = {{.first_position = 900}, {.num_queries = 90, .first_position = 300}},
         .score_range = 200.0f},
        "large");
  }
}

TEST_F(AttentionTest, ReachesBeyondPosition100000) {
  ExpectMatches(
      {.entry = kSeparate256,
       .geometry = {.num_heads = 4, .num_kv_heads = 2, .window = 1024},
       .tokens_per_page = 16,
       .sequences = {{.first_position = 131071}, {.num_queries = 50, .first_position = 200000}}},
      "far, sliding");
  ExpectMatches({.entry = kShared512,
                 .geometry = {.num_heads = 8, .num_kv_heads = 1},
                 .tokens_per_page = 64,
                 .sequences = {{.num_queries = 2, .first_position = 100100}}},
                "far, full");
}

TEST_F(AttentionTest, SplitsFromOneToManyAgree) {
  for (const KvEntryPlan& entry : kForms) {
    const StepSpec spec = {.entry = entry,
                           .geometry = {.num_heads = 8, .num_kv_heads = 1},
                           .tokens_per_page = 16,
                           .sequences = Decodes({2999})};
    Step step(spec);
    std::vector<int> seen;
    for (const int num_blocks : {1, 2, 3, 7, 20, 50, 94}) {
      EXPECT_LE(step.WorstError(step.Run({.work = {.max_partials = 256, .min_split_keys = 32},
                                          .num_blocks = num_blocks})),
                kTolerance);
      seen.push_back(step.num_splits());
    }
    EXPECT_EQ(seen.front(), 1);
    EXPECT_GE(seen.back(), 20);
  }
}

TEST_F(AttentionTest, SameItemsSameBits) {
  for (const KvEntryPlan& entry : kForms) {
    const StepSpec spec = {.entry = entry,
                           .geometry = {.num_heads = 16, .num_kv_heads = 2},
                           .tokens_per_page = 16,
                           .sequences = {{.num_queries = 150, .first_position = 200},
                                         {.first_position = 2500},
                                         {.num_queries = 4, .first_position = 1234}}};
    Step step(spec);
    const auto once = step.Run({});
    for (int time = 0; time < 5; ++time) EXPECT_EQ(step.Run({}), once);
    EXPECT_EQ(step.Run({.times = 3}), once)
        << "counters or scratch of an earlier run shone through";
    EXPECT_EQ(step.Run({.dependent = true, .times = 4}), once);
  }
}

TEST_F(AttentionTest, InvariantRowsDoNotDependOnTheStep) {
  for (const KvEntryPlan& entry : kForms) {
    for (const int window : {0, 100, 1024}) {
      SCOPED_TRACE(testing::Message() << entry.value_len << " " << entry.key_len << " " << window);
      const AttentionGeometry geometry = {.num_heads = 8, .num_kv_heads = 2, .window = window};
      const int64_t row_values = 8 * entry.value_len;
      constexpr int kLength = 1340;
      // All rows at once, in one block's walk over all keys.
      Step whole({.entry = entry,
                  .geometry = geometry,
                  .tokens_per_page = 16,
                  .sequences = {{.num_queries = kLength, .seed = 99}}});
      const auto expected =
          whole.Run({.work = {.batch_invariant = true, .max_partials = 0}, .num_blocks = 1});
      EXPECT_LE(whole.WorstError(expected), kTolerance);
      const auto expect_rows = [&](const std::vector<uint16_t>& rows, int64_t at, int position,
                                   int count, const std::string& how) {
        for (int row = 0; row < count; ++row) {
          const bool same = std::equal(rows.begin() + (at + row) * row_values,
                                       rows.begin() + (at + row + 1) * row_values,
                                       expected.begin() + (position + row) * row_values);
          ASSERT_TRUE(same) << how << ", position " << position + row;
        }
      };
      const std::vector<int> tile_sizes =
          entry.value_len == 256 ? std::vector<int>{16, 32, 64, 128} : std::vector<int>{16, 32, 64};
      for (const int tile_rows : tile_sizes) {
        expect_rows(
            whole.Run(
                {.work = {.batch_invariant = true, .max_partials = 1 << 15, .tile_rows = tile_rows},
                 .num_blocks = 100000}),
            0, 0, kLength, "split, tiles of " + std::to_string(tile_rows));
      }
      // Chunks, with all sorts of company and of pages.
      for (const auto& [begin, count] : {std::pair{0, 1},
                                         {31, 1},
                                         {64, 40},
                                         {511, 3},
                                         {512, 1},
                                         {1000, 340},
                                         {1339, 1},
                                         {1100, 17}}) {
        for (const int company : {0, 40}) {
          StepSpec spec = {.entry = entry,
                           .geometry = geometry,
                           .tokens_per_page = company == 0 ? 64 : 7,
                           .sequences = {{.num_queries = 9, .first_position = 700}}};
          for (int idx = 0; idx < company; ++idx) {
            spec.sequences.push_back({.first_position = 50 * idx});
          }
          spec.sequences.push_back({.num_queries = count, .first_position = begin, .seed = 99});
          Step step(spec);
          for (const int max_partials : {0, 4096}) {
            const auto rows =
                step.Run({.work = {.batch_invariant = true, .max_partials = max_partials}});
            expect_rows(rows, 9 + company, begin, count,
                        "chunk with " + std::to_string(company) + " others");
          }
        }
      }
    }
  }
}

TEST_F(AttentionTest, InvariantRowsDoNotDependOnWhatIsCached) {
  for (const KvEntryPlan& entry : kForms) {
    std::vector<uint16_t> expected;
    for (const int cached : {700, 0, 1, 512, 650}) {
      Step step({.entry = entry,
                 .geometry = {.num_heads = 8, .num_kv_heads = 1},
                 .tokens_per_page = 16,
                 .sequences = {{.num_queries = 20, .first_position = 700, .num_cached = cached}}});
      const auto rows = step.Run({.work = {.batch_invariant = true, .max_partials = 64}});
      if (expected.empty()) expected = rows;
      EXPECT_EQ(rows, expected) << cached;
    }
  }
}

// A captured launch serves whatever the buffers hold when it is replayed.
TEST_F(AttentionTest, GraphsReplayOtherItems) {
  for (const KvEntryPlan& entry : kForms) {
    const AttentionGeometry geometry = {.num_heads = 8, .num_kv_heads = 2, .window = 0};
    const int kv_heads = geometry.num_kv_heads;
    constexpr int kTokens = 16;
    constexpr int kPages = 200;
    constexpr int kMaxRows = 40;
    constexpr int kMaxItems = 4096;
    const AttentionWorkOptions work = {.num_blocks = AttentionBlocks(entry), .max_partials = 1024};
    Noise noise(5);
    const auto random = [&](int64_t size, float range) {
      std::vector<uint16_t> values(size);
      for (uint16_t& value : values) value = noise.Next(range);
      return values;
    };
    const int64_t page_values = int64_t{kv_heads} * kTokens * entry.entry_len;
    const DeviceArray<uint16_t> pool(random(kPages * page_values, 1.0f));
    const DeviceArray<uint16_t> new_entries(
        random(int64_t{kMaxRows} * kv_heads * entry.entry_len, 1.0f));
    const DeviceArray<uint16_t> queries(random(int64_t{kMaxRows} * 8 * entry.key_len, 0.3f));
    std::vector<int32_t> page_list(kPages - 1);
    for (int idx = 0; idx < kPages - 1; ++idx) page_list[idx] = kPages - 1 - idx;
    const DeviceArray<int32_t> page_ids(page_list);
    DeviceArray<AttentionSequence> sequences(kMaxRows);
    DeviceArray<AttentionItem> items(kMaxItems);
    DeviceArray<int32_t> num_items(std::vector<int32_t>{0});
    const DeviceArray<float> partials(AttentionPartialBytes(work.max_partials, false) / 4);
    const DeviceArray<int32_t> counters(std::vector<int32_t>(work.max_partials, 0));
    DeviceArray<uint16_t> out(int64_t{kMaxRows} * 8 * entry.value_len);
    const AttentionCall call = {.geometry = geometry,
                                .entry = entry,
                                .queries = reinterpret_cast<const bf16*>(queries.data()),
                                .out = reinterpret_cast<bf16*>(out.data()),
                                .pool = reinterpret_cast<const std::byte*>(pool.data()),
                                .page_bytes = page_values * 2,
                                .tokens_per_page = kTokens,
                                .new_entries = reinterpret_cast<const bf16*>(new_entries.data()),
                                .page_ids = page_ids.data(),
                                .sequences = sequences.data(),
                                .items = items.data(),
                                .num_items = num_items.data(),
                                .partials = partials.data(),
                                .counters = counters.data()};
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    LAPIDARY_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    LAPIDARY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RunAttention({.stream = stream}, call);
    RunAttention({.stream = stream, .dependent = true}, call);
    LAPIDARY_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    LAPIDARY_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));

    std::vector<std::vector<uint16_t>> results;
    for (const std::vector<int>& cached :
         {std::vector<int>{100, 7, 900}, {3000}, {0}, {16, 17, 18, 19, 1, 2, 3}}) {
      std::vector<AttentionSequence> step;
      for (int idx = 0; idx < cached.size(); ++idx) {
        step.push_back({.first_query = idx,
                        .num_queries = 1,
                        .first_position = cached[idx],
                        .num_cached = cached[idx],
                        .first_new = idx,
                        .table_base = 0});
      }
      std::vector<AttentionItem> plan;
      PlanAttentionWork(geometry, step, work, plan);
      ASSERT_LE(plan.size(), kMaxItems);
      sequences.Write(step);
      items.Write(plan);
      num_items.Write({static_cast<int32_t>(plan.size())});
      const std::vector<uint16_t> poison(int64_t{kMaxRows} * 8 * entry.value_len, kNan);
      out.Write(poison);
      RunAttention({.stream = stream}, call);
      LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream));
      const auto eager = out.Read();
      out.Write(poison);
      LAPIDARY_CUDA_CHECK(cudaGraphLaunch(replay, stream));
      LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream));
      EXPECT_EQ(out.Read(), eager);
      EXPECT_NE(eager[0], kNan);
      results.push_back(eager);
    }
    EXPECT_NE(results[0], results[1]);
    LAPIDARY_CUDA_CHECK(cudaGraphExecDestroy(replay));
    LAPIDARY_CUDA_CHECK(cudaGraphDestroy(graph));
    LAPIDARY_CUDA_CHECK(cudaStreamDestroy(stream));
  }
}

TEST(AttentionFormTest, OnlyKnownEntriesAreSupported) {
  for (const KvEntryPlan& entry : kForms) EXPECT_TRUE(AttentionSupports(entry));
  EXPECT_FALSE(
      AttentionSupports({.value_len = 128, .key_offset = 128, .key_len = 128, .entry_len = 256}));
  EXPECT_FALSE(
      AttentionSupports({.value_len = 512, .key_offset = 0, .key_len = 512, .entry_len = 512}));
}

}  // namespace
}  // namespace lapidary::cuda
