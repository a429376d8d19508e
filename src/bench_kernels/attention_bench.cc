// A case is a captured graph of launches over different pages, so that keys come from memory and
// not from the cache of the launch before.
#include "bench_kernels/attention_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "bench_kernels/device_array.h"
#include "bench_kernels/kernel_timing.h"
#include "bench_kernels/random_values.h"
#include "executor/cuda/cuda_forward.h"
#include "ops/cuda/attention/attention.h"

namespace lapidary {
namespace {

using cuda::AttentionGeometry;
using cuda::AttentionItem;
using cuda::AttentionSequence;
using cuda::AttentionWorkOptions;
using cuda::bf16;

struct Case {
  std::string name;
  KvEntryPlan entry;
  AttentionGeometry geometry;
  int num_sequences = 1;
  int num_queries = 1;  // of each
  int prefix = 0;       // cached tokens before them

  std::string What() const {
    return num_queries == 1    ? fmt::format("decode {} @{}", num_sequences, prefix)
           : num_queries <= 16 ? fmt::format("verify {}x{} @{}", num_sequences, num_queries, prefix)
           : num_sequences == 1
               ? fmt::format("prefill {} @{}", num_queries, prefix)
               : fmt::format("prefill {}x{} @{}", num_sequences, num_queries, prefix);
  }
};

struct Variant {
  std::string name;  // empty: the default
  AttentionWorkOptions work;
};

constexpr int kPartials = 4096;  // as the executor has it

std::vector<Variant> Variants(const Case& spec, int num_sms, bool all) {
  const int head_dim = spec.entry.value_len;
  const auto work_of = [&](int tile_rows, bool batch_invariant) {
    AttentionWorkOptions work = cuda::WorkOfTile(tile_rows, batch_invariant);
    work.max_partials = kPartials;
    return work;
  };
  const auto tile_rows = [&](bool batch_invariant) {
    const cuda::AttentionStepSize step = {
        .max_queries = spec.num_queries,
        .all_queries = int64_t{spec.num_sequences} * spec.num_queries,
        .num_sms = num_sms};
    return cuda::ChooseTileRows(spec.geometry, head_dim, step, batch_invariant);
  };
  const AttentionWorkOptions usual = work_of(tile_rows(false), false);
  std::vector<Variant> variants = {{"", usual}};
  if (!all) return variants;
  for (const int keys : {32, 128, 256}) {
    variants.push_back({fmt::format("split{}", keys), usual});
    variants.back().work.min_split_keys = keys;
  }
  variants.push_back({"unsplit", usual});
  variants.back().work.max_partials = 0;
  variants.push_back({"batch_invariant", work_of(tile_rows(true), true)});
  for (const int rows : cuda::kAttentionTileRows) {
    const bool fits = rows >= spec.geometry.heads_per_kv_head() && (rows <= 64 || head_dim == 256);
    if (fits && rows != usual.tile_rows) {
      variants.push_back({fmt::format("tile{}", rows), work_of(rows, false)});
    }
  }
  return variants;
}

std::vector<Case> Cases(const std::string& model, const ModelPlan& plan) {
  std::vector<Case> cases;
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    const auto layer = std::find_if(plan.layers.begin(), plan.layers.end(),
                                    [&](const LayerPlan& l) { return l.kind == kind; });
    if (layer == plan.layers.end()) continue;
    const bool is_full = kind == AttentionKind::kFull;
    const auto add = [&](int sequences, int queries, int prefix) {
      cases.push_back({fmt::format("{} attention_{}", model, is_full ? "full" : "sliding"),
                       layer->kv_entry,
                       {layer->num_heads, layer->num_kv_heads, layer->window},
                       sequences,
                       queries,
                       prefix});
    };
    for (const int prefix : {1000, 8000}) {
      for (const int batch : {1, 8, 32, 80}) add(batch, 1, prefix);
    }
    if (is_full) add(1, 1, 100'000);
    for (const int batch : {32, 80}) add(batch, 4, 8000);
    add(1, 1000, 0);
    add(1, 8192, 0);
    add(1, 512, 7680);
  }
  return cases;
}

// A shape of no model here, that others publish figures of.
std::vector<Case> ComparisonCases() {
  constexpr KvEntryPlan kEntry = {
      .value_len = 256, .key_offset = 256, .key_len = 256, .entry_len = 512};
  const Case dense = {"8q4kv attention_dense", kEntry, {8, 4, 0}};
  const Case sliding = {"8q4kv attention_sliding", kEntry, {8, 4, 1024}};
  std::vector<Case> cases;
  const auto add = [&](Case spec, int sequences, int queries, int prefix) {
    spec.num_sequences = sequences;
    spec.num_queries = queries;
    spec.prefix = prefix;
    cases.push_back(std::move(spec));
  };
  for (const int prompt : {1000, 8192}) add(dense, 1, prompt, 0);
  for (const int prefix : {64, 8000}) add(sliding, 32, 4, prefix);
  return cases;
}

// Everything of a case but the items.
class CaseRunner {
 public:
  CaseRunner(const DeviceInfo& device, const Case& spec)
      : device_(device),
        spec_(spec),
        tokens_per_page_(spec.geometry.window > 0 ? 16 : 64),
        page_values_(int64_t{spec.geometry.num_kv_heads} * tokens_per_page_ * spec.entry.entry_len),
        partials_(cuda::AttentionPartialBytes(device.num_sms, kPartials, true) / 4),
        counters_(std::vector<int32_t>(kPartials, 0)),
        new_entries_(Random(Rows() * spec.geometry.num_kv_heads * spec.entry.entry_len)),
        queries_(Random(Rows() * spec.geometry.num_heads * spec.entry.key_len)),
        out_(Rows() * spec.geometry.num_heads * spec.entry.value_len),
        page_ids_(MakePageIds()),
        pool_(Random(std::max(1, num_pages_) * page_values_)) {
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  }

  // Median microseconds of a launch.
  double Time(AttentionWorkOptions work) {
    work.num_blocks =
        cuda::AttentionBlocks(device_, spec_.entry, work.tile_rows, work.batch_invariant);
    std::vector<AttentionItem> items;
    cuda::PlanAttentionWork(spec_.geometry, sequences_, work, items);
    DeviceArray<int32_t> num_items(std::vector<int32_t>{static_cast<int32_t>(items.size())});
    items.resize(std::max<size_t>(items.size(), work.num_blocks));
    DeviceArray<AttentionItem> device_items(items);
    return TimeGraphUs(stream_.get(), num_copies_, [&](int copy) {
      cuda::RunAttention({.stream = stream_.get(), .dependent = true, .device = &device_},
                         {.geometry = spec_.geometry,
                          .entry = spec_.entry,
                          .queries = queries_.get(),
                          .out = out_.get(),
                          .pool = reinterpret_cast<const std::byte*>(pool_.get()),
                          .page_bytes = page_values_ * 2,
                          .layer_offset = 0,
                          .tokens_per_page = tokens_per_page_,
                          .new_entries = new_entries_.get(),
                          .page_ids = page_ids_.get(),
                          .sequences = device_sequences_[copy].get(),
                          .items = device_items.get(),
                          .num_items = num_items.get(),
                          .tile_rows = work.tile_rows,
                          .batch_invariant = work.batch_invariant,
                          .partials = partials_.get(),
                          .counters = counters_.get()});
    });
  }

 private:
  int64_t Rows() const { return int64_t{spec_.num_sequences} * spec_.num_queries; }

  DeviceArray<bf16> Random(int64_t count) {
    DeviceArray<bf16> values(count);
    FillRandom(stream_.get(), values.get(), count, 0.2f);
    return values;
  }

  // Every launch has its own pages, shuffled.
  std::vector<int32_t> MakePageIds() {
    const int window = spec_.geometry.window;
    const int first_key = window > 0 ? std::max(0, spec_.prefix - window + 1) : 0;
    const int blocks = (spec_.prefix + tokens_per_page_ - 1) / tokens_per_page_;
    const int first_block = first_key / tokens_per_page_;
    const int64_t bytes = std::max<int64_t>(
        1, int64_t{spec_.num_sequences} * (blocks - first_block) * page_values_ * 2);
    num_copies_ = static_cast<int>(std::clamp<int64_t>((300 << 20) / bytes + 1, 2, 16));
    num_pages_ = num_copies_ * spec_.num_sequences * (blocks - first_block);
    std::vector<int32_t> order(num_pages_);
    for (int idx = 0; idx < num_pages_; ++idx) order[idx] = idx;
    std::shuffle(order.begin(), order.end(), std::mt19937(2));
    std::vector<int32_t> page_ids;
    size_t next = 0;
    for (int copy = 0; copy < num_copies_; ++copy) {
      std::vector<AttentionSequence> sequences;
      for (int idx = 0; idx < spec_.num_sequences; ++idx) {
        sequences.push_back({.first_query = idx * spec_.num_queries,
                             .num_queries = spec_.num_queries,
                             .first_position = spec_.prefix,
                             .num_cached = spec_.prefix,
                             .first_new = idx * spec_.num_queries,
                             .table_base = static_cast<int32_t>(page_ids.size())});
        page_ids.insert(page_ids.end(), first_block, 0);
        for (int block = first_block; block < blocks; ++block) page_ids.push_back(order[next++]);
      }
      device_sequences_.emplace_back(sequences);
      sequences_ = sequences;
    }
    return page_ids;
  }

  const DeviceInfo& device_;
  const Case spec_;
  const int tokens_per_page_;
  const int64_t page_values_;
  cuda::Stream stream_;
  int num_copies_ = 1;
  int num_pages_ = 0;
  std::vector<AttentionSequence> sequences_;  // of the last copy; only table_base differs
  std::vector<DeviceArray<AttentionSequence>> device_sequences_;
  DeviceArray<float> partials_;
  DeviceArray<int32_t> counters_;
  DeviceArray<bf16> new_entries_, queries_, out_;
  DeviceArray<int32_t> page_ids_;
  DeviceArray<bf16> pool_;
};

// A row without its time: bytes that must move and operations that must be done.
KernelRow MakeRow(const Case& spec, const std::string& variant) {
  const KvEntryPlan& entry = spec.entry;
  const AttentionGeometry& geometry = spec.geometry;
  double pairs = 0.0;  // (query, key)
  for (int query = 0; query < spec.num_queries; ++query) {
    const int position = spec.prefix + query;
    pairs += geometry.window > 0 ? std::min(position + 1, geometry.window) : position + 1;
  }
  const int first_key = geometry.window > 0 ? std::max(0, spec.prefix - geometry.window + 1) : 0;
  const double keys = spec.prefix + spec.num_queries - first_key;
  KernelRow row{.name = spec.name,
                .shape = spec.What(),
                .variant = variant,
                .rows = spec.num_sequences * spec.num_queries};
  row.bytes = 2.0 * spec.num_sequences *
              (keys * geometry.num_kv_heads * entry.entry_len +
               spec.num_queries * geometry.num_heads * (entry.key_len + entry.value_len));
  row.flops =
      2.0 * spec.num_sequences * pairs * geometry.num_heads * (entry.key_len + entry.value_len);
  row.attention = {.num_heads = geometry.num_heads,
                   .num_kv_heads = geometry.num_kv_heads,
                   .head_dim = entry.value_len,
                   .window = geometry.window,
                   .sequences = spec.num_sequences,
                   .queries = spec.num_queries,
                   .prefix = spec.prefix};
  return row;
}

}  // namespace

void BenchAttention(const std::string& model, const ModelPlan& plan, const BenchSink& sink) {
  std::vector<Case> cases = Cases(model, plan);
  for (Case& spec : ComparisonCases()) cases.push_back(std::move(spec));
  for (const Case& spec : cases) {
    std::optional<CaseRunner> runner;
    double default_us = 0.0;
    for (const Variant& variant : Variants(spec, sink.device.num_sms, sink.variants)) {
      // One item over a hundred thousand keys says nothing and takes long.
      if (variant.name == "unsplit" && spec.prefix > 50'000) continue;
      KernelRow row = MakeRow(spec, variant.name);
      if (!sink.wants(row)) continue;
      if (!runner) runner.emplace(sink.device, spec);
      row.us = runner->Time(variant.work);
      if (variant.name.empty()) {
        default_us = row.us;
      } else if (default_us > 0.0) {
        row.baseline = "the default";
        row.baseline_us = default_us;
      }
      sink.add(std::move(row));
    }
  }
}

}  // namespace lapidary
