// Times attention at the shapes of the Gemma 4 models and sets each against its floor: the larger
// of bytes / 4.2 TB/s and operations / 790 TFLOP/s, what one H200 copies and multiplies at best.
//
// A case is a captured graph of launches over different pages, so that keys come from memory and
// not from the cache of the launch before. Every variant of splitting and tiling is timed in turn.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/attention.h"

namespace lapidary::cuda {
namespace {

constexpr double kBytesPerUs = 4.2e6;
constexpr double kFlopsPerUs = 790e6;

constexpr KvEntryPlan kSeparate256 = {
    .value_len = 256, .key_offset = 256, .key_len = 256, .entry_len = 512};
constexpr KvEntryPlan kSeparate512 = {
    .value_len = 512, .key_offset = 512, .key_len = 512, .entry_len = 1024};
constexpr KvEntryPlan kShared512 = {
    .value_len = 512, .key_offset = 0, .key_len = 640, .entry_len = 640};

struct Layer {
  std::string name;
  KvEntryPlan entry;
  AttentionGeometry geometry;
};

struct Case {
  Layer layer;
  int num_sequences = 1;
  int num_queries = 1;  // of each
  int prefix = 0;       // cached tokens before them

  std::string name() const {
    const std::string what =
        num_queries == 1     ? fmt::format("decode {}", num_sequences)
        : num_queries <= 16  ? fmt::format("verify {}x{}", num_sequences, num_queries)
        : num_sequences == 1 ? fmt::format("prefill {}", num_queries)
                             : fmt::format("prefill {}x{}", num_sequences, num_queries);
    return fmt::format("{} {} @{}", layer.name, what, prefix);
  }
};

struct Variant {
  std::string name;
  AttentionWorkOptions work;
};

std::vector<Variant> Variants(const KvEntryPlan& entry) {
  constexpr int kPartials = 1 << 14;
  std::vector<Variant> variants = {
      {"default", {.max_partials = kPartials}},
      {"split32", {.max_partials = kPartials, .min_split_keys = 32}},
      {"split128", {.max_partials = kPartials, .min_split_keys = 128}},
      {"split256", {.max_partials = kPartials, .min_split_keys = 256}},
      {"unsplit", {.max_partials = 0}},
      {"invariant", {.batch_invariant = true, .max_partials = kPartials}}};
  if (entry.value_len == 256) {
    variants.push_back({"wide", {.max_partials = kPartials, .tile_rows = 128}});
    variants.push_back({"tile32", {.max_partials = kPartials, .tile_rows = 32}});
  }
  return variants;
}

std::vector<Case> Cases() {
  const Layer e2b_sliding = {"E2B sliding 8q/1kv W512", kSeparate256, {8, 1, 512}};
  const Layer e2b_full = {"E2B full 8q/1kv", kSeparate512, {8, 1, 0}};
  const Layer e4b_sliding = {"E4B sliding 8q/2kv W512", kSeparate256, {8, 2, 512}};
  const Layer e4b_full = {"E4B full 8q/2kv", kSeparate512, {8, 2, 0}};
  const Layer moe_sliding = {"26B sliding 16q/8kv W1024", kSeparate256, {16, 8, 1024}};
  const Layer moe_full = {"26B full 16q/2kv", kShared512, {16, 2, 0}};
  const Layer moe_full_separate = {"26B full 16q/2kv K,V", kSeparate512, {16, 2, 0}};
  const Layer big_sliding = {"31B sliding 32q/16kv W1024", kSeparate256, {32, 16, 1024}};
  const Layer big_full = {"31B full 32q/4kv", kShared512, {32, 4, 0}};
  const Layer mid_full = {"12B full 16q/1kv", kShared512, {16, 1, 0}};
  const Layer plain = {"8q/4kv d256", kSeparate256, {8, 4, 0}};
  const Layer plain_window = {"8q/4kv d256 W1024", kSeparate256, {8, 4, 1024}};

  std::vector<Case> cases;
  for (const Layer& layer : {e2b_sliding, e2b_full, e4b_sliding, e4b_full, moe_sliding, moe_full,
                             big_sliding, big_full, mid_full}) {
    for (const int prefix : {1000, 8000}) {
      for (const int batch : {1, 8, 32, 80}) cases.push_back({layer, batch, 1, prefix});
    }
  }
  for (const int batch : {1, 32, 80}) cases.push_back({moe_full_separate, batch, 1, 8000});
  cases.push_back({moe_full, 1, 1, 100000});
  for (const int prefix : {64, 1000, 8000}) cases.push_back({plain_window, 32, 4, prefix});
  for (const Layer& layer : {moe_sliding, moe_full, big_sliding, big_full}) {
    cases.push_back({layer, 32, 4, 8000});
    cases.push_back({layer, 80, 4, 8000});
  }
  cases.push_back({moe_full_separate, 32, 4, 8000});
  for (const Layer& layer : {plain, moe_sliding, moe_full, moe_full_separate, big_sliding, big_full,
                             e4b_full, e2b_sliding}) {
    cases.push_back({layer, 1, 1000, 0});
    cases.push_back({layer, 1, 8192, 0});
  }
  cases.push_back({plain, 4, 1000, 0});
  cases.push_back({moe_full, 1, 512, 7680});
  return cases;
}

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};

template <typename T>
std::unique_ptr<T, DeviceFree> Allocate(int64_t count) {
  void* memory = nullptr;
  LAPIDARY_CUDA_CHECK(cudaMalloc(&memory, std::max<int64_t>(count, 1) * sizeof(T)));
  return std::unique_ptr<T, DeviceFree>(static_cast<T*>(memory));
}

template <typename T>
std::unique_ptr<T, DeviceFree> Upload(const std::vector<T>& values) {
  auto memory = Allocate<T>(values.size());
  LAPIDARY_CUDA_CHECK(
      cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

// Random bf16 values, a stretch of them over and over.
std::unique_ptr<bf16, DeviceFree> RandomValues(int64_t count) {
  static const std::vector<uint16_t> stretch = [] {
    std::vector<uint16_t> values(32 << 20);
    std::mt19937 random(1);
    for (size_t idx = 0; idx < values.size(); idx += 2) {
      const uint32_t bits = random();
      // Signs and fractions at random, magnitudes of 2^-5 to 2^-2.
      values[idx] = (bits & 0x807f) | ((122 + (bits >> 30)) << 7);
      values[idx + 1] = (bits >> 8 & 0x807f) | ((122 + (bits >> 28 & 3)) << 7);
    }
    return values;
  }();
  auto memory = Allocate<bf16>(count);
  const int64_t size = static_cast<int64_t>(stretch.size());
  const int64_t first = std::min(count, size);
  LAPIDARY_CUDA_CHECK(cudaMemcpy(memory.get(), stretch.data(), first * 2, cudaMemcpyHostToDevice));
  for (int64_t done = first; done < count; done += size) {
    LAPIDARY_CUDA_CHECK(cudaMemcpy(memory.get() + done, memory.get(),
                                   std::min(size, count - done) * 2, cudaMemcpyDeviceToDevice));
  }
  return memory;
}

// Everything of a case but the items.
class CaseRunner {
 public:
  CaseRunner(const Case& spec, int max_partials) : spec_(spec) {
    const KvEntryPlan& entry = spec.layer.entry;
    const AttentionGeometry& geometry = spec.layer.geometry;
    tokens_per_page_ = geometry.window > 0 ? 16 : 64;
    const int first_key = geometry.window > 0 ? std::max(0, spec.prefix - geometry.window + 1) : 0;
    const int blocks = (spec.prefix + tokens_per_page_ - 1) / tokens_per_page_;
    const int first_block = first_key / tokens_per_page_;
    page_values_ = int64_t{geometry.num_kv_heads} * tokens_per_page_ * entry.entry_len;
    const int64_t bytes = std::max<int64_t>(
        1, int64_t{spec.num_sequences} * (blocks - first_block) * page_values_ * 2);
    num_copies_ = static_cast<int>(std::clamp<int64_t>((300 << 20) / bytes + 1, 2, 16));

    // Every launch has its own pages, shuffled.
    const int num_pages = num_copies_ * spec.num_sequences * (blocks - first_block);
    std::vector<int32_t> order(num_pages);
    for (int idx = 0; idx < num_pages; ++idx) order[idx] = idx;
    std::shuffle(order.begin(), order.end(), std::mt19937(2));
    std::vector<int32_t> page_ids;
    size_t next = 0;
    for (int copy = 0; copy < num_copies_; ++copy) {
      std::vector<AttentionSequence> sequences;
      for (int idx = 0; idx < spec.num_sequences; ++idx) {
        sequences.push_back({.first_query = idx * spec.num_queries,
                             .num_queries = spec.num_queries,
                             .first_position = spec.prefix,
                             .num_cached = spec.prefix,
                             .first_new = idx * spec.num_queries,
                             .table_base = static_cast<int32_t>(page_ids.size())});
        page_ids.insert(page_ids.end(), first_block, 0);
        for (int block = first_block; block < blocks; ++block) page_ids.push_back(order[next++]);
      }
      device_sequences_.push_back(Upload(sequences));
      sequences_ = sequences;
    }
    page_ids_ = Upload(page_ids);
    pool_ = RandomValues(std::max<int64_t>(1, num_pages) * page_values_);
    const int64_t rows = int64_t{spec.num_sequences} * spec.num_queries;
    new_entries_ = RandomValues(rows * geometry.num_kv_heads * entry.entry_len);
    queries_ = RandomValues(rows * geometry.num_heads * entry.key_len);
    out_ = Allocate<bf16>(rows * geometry.num_heads * entry.value_len);
    partials_ = Allocate<float>(AttentionPartialBytes(max_partials, true) / 4);
    counters_ = Upload(std::vector<int32_t>(max_partials, 0));
    LAPIDARY_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    LAPIDARY_CUDA_CHECK(cudaEventCreate(&start_));
    LAPIDARY_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~CaseRunner() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  // Median microseconds of a launch.
  double Time(AttentionWorkOptions work, int* num_items_out) {
    work.num_blocks = AttentionBlocks(spec_.layer.entry, work.tile_rows);
    std::vector<AttentionItem> items;
    PlanAttentionWork(spec_.layer.geometry, sequences_, work, items);
    *num_items_out = static_cast<int>(items.size());
    const auto num_items = Upload(std::vector<int32_t>{static_cast<int32_t>(items.size())});
    items.resize(std::max<size_t>(items.size(), work.num_blocks));
    const auto device_items = Upload(items);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    LAPIDARY_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int copy = 0; copy < num_copies_; ++copy) {
      RunAttention({.stream = stream_, .dependent = true},
                   {.geometry = spec_.layer.geometry,
                    .entry = spec_.layer.entry,
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
    }
    LAPIDARY_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    LAPIDARY_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
    std::vector<float> times;
    double spent_ms = 0.0;
    // The first is warm-up; long cases are repeated less.
    for (int round = 0; round < 15 && (round < 4 || spent_ms < 60.0); ++round) {
      LAPIDARY_CUDA_CHECK(cudaEventRecord(start_, stream_));
      LAPIDARY_CUDA_CHECK(cudaGraphLaunch(replay, stream_));
      LAPIDARY_CUDA_CHECK(cudaEventRecord(end_, stream_));
      LAPIDARY_CUDA_CHECK(cudaEventSynchronize(end_));
      float ms = 0.0f;
      LAPIDARY_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, end_));
      spent_ms += ms;
      if (round > 0) times.push_back(ms);
    }
    LAPIDARY_CUDA_CHECK(cudaGraphExecDestroy(replay));
    LAPIDARY_CUDA_CHECK(cudaGraphDestroy(graph));
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2] * 1000.0 / num_copies_;
  }

  // Bytes that must move and operations that must be done.
  std::pair<double, double> Work() const {
    const KvEntryPlan& entry = spec_.layer.entry;
    const AttentionGeometry& geometry = spec_.layer.geometry;
    double pairs = 0.0;  // (query, key)
    for (int query = 0; query < spec_.num_queries; ++query) {
      const int position = spec_.prefix + query;
      pairs += geometry.window > 0 ? std::min(position + 1, geometry.window) : position + 1;
    }
    const int first_key = geometry.window > 0 ? std::max(0, spec_.prefix - geometry.window + 1) : 0;
    const double keys = spec_.prefix + spec_.num_queries - first_key;
    const double bytes =
        2.0 * (keys * geometry.num_kv_heads * entry.entry_len +
               spec_.num_queries * geometry.num_heads * (entry.key_len + entry.value_len));
    const double flops = 2.0 * pairs * geometry.num_heads * (entry.key_len + entry.value_len);
    return {bytes * spec_.num_sequences, flops * spec_.num_sequences};
  }

 private:
  const Case spec_;
  int tokens_per_page_ = 0;
  int64_t page_values_ = 0;
  int num_copies_ = 1;
  std::vector<AttentionSequence> sequences_;  // of the last copy; only table_base differs
  std::vector<std::unique_ptr<AttentionSequence, DeviceFree>> device_sequences_;
  std::unique_ptr<int32_t, DeviceFree> page_ids_;
  std::unique_ptr<bf16, DeviceFree> pool_;
  std::unique_ptr<bf16, DeviceFree> new_entries_;
  std::unique_ptr<bf16, DeviceFree> queries_;
  std::unique_ptr<bf16, DeviceFree> out_;
  std::unique_ptr<float, DeviceFree> partials_;
  std::unique_ptr<int32_t, DeviceFree> counters_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

int Main(int argc, char** argv) {
  CLI::App app("Attention kernels at the models' shapes, against their floors");
  std::string json_path;
  std::string filter;
  bool all_variants = true;
  app.add_option("--json", json_path, "Write every figure to this file");
  app.add_option("--filter", filter, "Only cases whose name contains this");
  app.add_flag("!--default-only", all_variants, "Leave the other variants out");
  CLI11_PARSE(app, argc, argv);

  nlohmann::json results = nlohmann::json::array();
  fmt::print("{:<42}{:>9}{:>9}{:>7}{:>8}{:>8}  {}\n", "case", "floor us", "us", "share", "GB/s",
             "TFLOP/s", "other variants, us");
  for (const Case& spec : Cases()) {
    if (spec.name().find(filter) == std::string::npos) continue;
    const std::vector<Variant> variants = Variants(spec.layer.entry);
    CaseRunner runner(spec, variants.front().work.max_partials);
    const auto [bytes, flops] = runner.Work();
    const double floor_us = std::max(bytes / kBytesPerUs, flops / kFlopsPerUs);
    std::string others;
    for (const Variant& variant : variants) {
      const bool is_default = &variant == &variants.front();
      if (!is_default && !all_variants) break;
      // One item over a hundred thousand keys says nothing and takes long.
      if (variant.name == "unsplit" && spec.prefix > 50000) continue;
      int num_items = 0;
      const double us = runner.Time(variant.work, &num_items);
      if (is_default) {
        fmt::print("{:<42}{:>9.1f}{:>9.1f}{:>6.0f}%{:>8.0f}{:>8.0f}  ", spec.name(), floor_us, us,
                   100.0 * floor_us / us, bytes / us * 1e-3, flops / us * 1e-6);
      } else {
        others += fmt::format("{} {:.1f}  ", variant.name, us);
      }
      results.push_back({{"case", spec.name()},
                         {"variant", variant.name},
                         {"us", us},
                         {"floor_us", floor_us},
                         {"share_of_floor", floor_us / us},
                         {"gb_per_s", bytes / us * 1e-3},
                         {"tflop_per_s", flops / us * 1e-6},
                         {"items", num_items}});
    }
    fmt::print("{}\n", others);
    std::fflush(stdout);
  }
  if (!json_path.empty()) {
    std::ofstream file(json_path);
    file << results.dump(1) << "\n";
    if (!file) {
      fmt::print(stderr, "cannot write {}; choose another path for --json\n", json_path);
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace lapidary::cuda

int main(int argc, char** argv) {
  try {
    return lapidary::cuda::Main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
