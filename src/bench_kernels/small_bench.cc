// Inputs are not rotated: in a step too, these kernels find what the one before them wrote in the
// cache.
#include "bench_kernels/small_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "bench_kernels/device_array.h"
#include "bench_kernels/kernel_timing.h"
#include "bench_kernels/random_values.h"
#include "ops/cuda/attention/kv_entries.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/per_layer_block.h"
#include "ops/cuda/sampling/sampling.h"

namespace lapidary {
namespace {

using cuda::bf16;
using cuda::LaunchContext;

constexpr int kLaunches = 20;
constexpr int kMaxSampledRows = 256;
constexpr int kTableIds = 4096;  // rows of embedding tables: enough that the cache does not help

template <typename T>
DeviceArray<T> Random(cudaStream_t stream, int64_t count) {
  DeviceArray<T> values(count);
  FillRandom(stream, values.get(), count, 1.0f);
  return values;
}

DeviceArray<int32_t> Counting(int count, int modulus) {
  std::vector<int32_t> values(count);
  for (int idx = 0; idx < count; ++idx) values[idx] = static_cast<int>(97LL * idx % modulus);
  return DeviceArray<int32_t>(values);
}

// Times a call as the steps' graphs launch it, each behind the one before.
template <typename Run>
double TimeCalls(const cuda::Stream& stream, const BenchSink& sink, const Run& run) {
  return TimeGraphUs(stream.get(), kLaunches, [&](int idx) {
    run(LaunchContext{.stream = stream.get(), .dependent = idx > 0, .device = &sink.device});
  });
}

KernelRow Row(const std::string& model, const char* name, std::string shape, int rows,
              double bytes) {
  return {.name = fmt::format("{} {}", model, name),
          .shape = std::move(shape),
          .rows = rows,
          .bytes = bytes};
}

void BenchEmbedding(const std::string& model, const ModelPlan& plan, int rows,
                    const cuda::Stream& stream, const BenchSink& sink) {
  const int64_t hidden = plan.hidden_size;
  auto embedding = Random<bf16>(stream.get(), kTableIds * hidden);
  auto ids = Counting(rows, kTableIds);
  auto positions = Counting(rows, 4000);
  DeviceArray<float> hidden_out(rows * hidden);
  DeviceArray<bf16> x(rows * hidden);
  cuda::EmbedCall call;
  call.rows = rows;
  call.hidden = plan.hidden_size;
  call.token_ids = ids.get();
  call.positions = positions.get();
  call.embedding = cuda::Bf16Matrix(embedding.get(), kTableIds, plan.hidden_size);
  call.hidden_out = hidden_out.get();
  call.x = x.get();
  sink.Time(
      Row(model, "embed", fmt::format("{}", hidden), rows, rows * hidden * (2.0 + 4.0 + 2.0)), [&] {
        return TimeCalls(stream, sink, [&](const LaunchContext& c) { cuda::RunEmbed(c, call); });
      });
  if (!plan.ple) return;
  const int64_t columns = int64_t{plan.num_layers} * plan.ple->width;
  auto table = Random<bf16>(stream.get(), kTableIds * columns);
  auto projected = Random<bf16>(stream.get(), rows * columns);
  auto norm = Random<float>(stream.get(), plan.ple->width);
  DeviceArray<bf16> out(rows * columns);
  cuda::PerLayerInputsCall inputs;
  inputs.rows = rows;
  inputs.num_layers = plan.num_layers;
  inputs.width = plan.ple->width;
  inputs.hidden = plan.hidden_size;
  inputs.token_ids = ids.get();
  inputs.table = cuda::Bf16Matrix(table.get(), kTableIds, static_cast<int>(columns));
  inputs.projected = projected.get();
  inputs.norm = norm.get();
  inputs.out = out.get();
  sink.Time(Row(model, "per_layer_inputs", fmt::format("{}x{}", plan.num_layers, plan.ple->width),
                rows, rows * columns * 6.0),
            [&] {
              return TimeCalls(stream, sink,
                               [&](const LaunchContext& c) { cuda::RunPerLayerInputs(c, inputs); });
            });
}

void BenchResidual(const std::string& model, const ModelPlan& plan, int rows,
                   const cuda::Stream& stream, const BenchSink& sink) {
  const int64_t size = int64_t{rows} * plan.hidden_size;
  auto hidden = Random<float>(stream.get(), size);
  auto block_out = Random<bf16>(stream.get(), size);
  auto norm = Random<float>(stream.get(), plan.hidden_size);
  DeviceArray<float> hidden_out(size);
  DeviceArray<bf16> x(size);
  const cuda::ResidualUpdate update{.hidden = hidden.get(),
                                    .block_out = block_out.get(),
                                    .post_norm = norm.get(),
                                    .hidden_out = hidden_out.get(),
                                    .pre_norm = norm.get()};
  sink.Time(Row(model, "residual_update", fmt::format("{}", plan.hidden_size), rows,
                static_cast<double>(size) * (4.0 + 2.0 + 4.0 + 2.0)),
            [&] {
              return TimeCalls(stream, sink, [&](const LaunchContext& c) {
                cuda::RunResidualUpdate(c, update, rows, plan.hidden_size, x.get());
              });
            });
}

// Every launch has other weights, as every layer does.
void BenchPerLayerBlock(const std::string& model, const ModelPlan& plan, int rows,
                        const cuda::Stream& stream, const BenchSink& sink) {
  if (!plan.ple || rows > cuda::kMaxPerLayerBlockRows) return;
  const int width = plan.ple->width;
  if (!cuda::PerLayerBlockSupports(sink.device, plan.hidden_size, width)) return;
  const int64_t size = int64_t{rows} * plan.hidden_size;
  const int64_t weight_size = int64_t{width} * plan.hidden_size;
  auto hidden = Random<float>(stream.get(), size);
  auto block_out = Random<bf16>(stream.get(), size);
  auto multiplier = Random<bf16>(stream.get(), int64_t{rows} * width);
  auto norm = Random<float>(stream.get(), plan.hidden_size);
  auto gates = Random<bf16>(stream.get(), kLaunches * weight_size);
  auto projections = Random<bf16>(stream.get(), kLaunches * weight_size);
  DeviceArray<float> hidden_out(size);
  DeviceArray<bf16> x(size);
  cuda::PerLayerBlockCall call;
  call.rows = rows;
  call.hidden_size = plan.hidden_size;
  call.before.hidden = hidden.get();
  call.before.block_out = block_out.get();
  call.before.post_norm = norm.get();
  call.multiplier = multiplier.get();
  call.multiplier_stride = width;
  call.after.post_norm = norm.get();
  call.after.hidden_out = hidden_out.get();
  call.after.pre_norm = norm.get();
  call.x = x.get();
  const double row_bytes = (4.0 + 2.0 + 4.0 + 2.0) * size + 2.0 * rows * width;
  sink.Time(Row(model, "per_layer_block", fmt::format("{}x{}", plan.hidden_size, width), rows,
                2.0 * 2.0 * weight_size + row_bytes),
            [&] {
              return TimeGraphUs(stream.get(), kLaunches, [&](int idx) {
                call.gate =
                    cuda::Bf16Matrix(gates.get() + idx * weight_size, width, plan.hidden_size);
                call.projection = cuda::Bf16Matrix(projections.get() + idx * weight_size,
                                                   plan.hidden_size, width);
                cuda::RunPerLayerBlock(
                    {.stream = stream.get(), .dependent = idx > 0, .device = &sink.device}, call);
              });
            });
}

void BenchQueryEntry(const std::string& model, const LayerPlan& layer, int rows,
                     const cuda::Stream& stream, const BenchSink& sink) {
  const int kv_heads = layer.num_kv_heads;
  const int64_t raw_width =
      int64_t{layer.num_heads + kv_heads * (layer.k_is_v ? 1 : 2)} * layer.head_dim;
  const int64_t query_width = int64_t{layer.num_heads} * layer.kv_entry.key_len;
  const int64_t entry_width = int64_t{kv_heads} * layer.kv_entry.entry_len;
  auto raw = Random<bf16>(stream.get(), rows * raw_width);
  auto norm = Random<float>(stream.get(), layer.head_dim);
  auto cos_sin = Random<float>(stream.get(),
                               int64_t{2} * rows * cuda::RopeRowPairs(layer.rope.num_rotary_pairs));
  DeviceArray<bf16> queries(rows * query_width);
  DeviceArray<bf16> entries(rows * entry_width);
  cuda::QueryEntryCall call;
  call.rows = rows;
  call.num_heads = layer.num_heads;
  call.num_kv_heads = kv_heads;
  call.head_dim = layer.head_dim;
  call.k_is_v = layer.k_is_v;
  call.entry = layer.kv_entry;
  call.raw = raw.get();
  call.q_norm = call.k_norm = call.owner_k_norm = norm.get();
  call.rope = reinterpret_cast<const float2*>(cos_sin.get());
  call.rotary_pairs = layer.rope.num_rotary_pairs;
  call.queries = queries.get();
  call.entries = entries.get();
  const bool is_full = layer.kind == AttentionKind::kFull;
  sink.Time(Row(model, is_full ? "query_entry_full" : "query_entry_sliding",
                fmt::format("{}q/{}kv d{}", layer.num_heads, kv_heads, layer.head_dim), rows,
                2.0 * rows * static_cast<double>(raw_width + query_width + entry_width)),
            [&] {
              return TimeCalls(stream, sink,
                               [&](const LaunchContext& c) { cuda::RunQueryEntry(c, call); });
            });
}

// Rows whose likeliest tokens stand out, as a model's do.
DeviceArray<float> PeakedLogits(int rows, int vocab_size) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> row(vocab_size);
  for (float& value : row) value = normal(random);
  DeviceArray<float> logits(int64_t{rows} * vocab_size);
  for (int idx = 0; idx < rows; ++idx) {
    LAPIDARY_CUDA_CHECK(cudaMemcpy(logits.get() + int64_t{idx} * vocab_size, row.data(),
                                   row.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  return logits;
}

// Gemma's own settings are top-k 64 and top-p 0.95.
struct SamplingCase {
  const char* name;
  bool greedy = false;
  int top_k = 0;
  float top_p = 1.0f;
  int num_logprobs = -1;
};
constexpr SamplingCase kSamplingCases[] = {
    {.name = "sample_greedy", .greedy = true},
    {.name = "sample_top_k_top_p", .top_k = 64, .top_p = 0.95f},
    {.name = "sample_top_p", .top_p = 0.95f},
    {.name = "sample_any"},
    {.name = "sample_logprobs", .greedy = true, .num_logprobs = 5}};

void BenchSampling(const std::string& model, const ModelPlan& plan, int rows,
                   const cuda::Stream& stream, const BenchSink& sink) {
  auto logits = PeakedLogits(rows, plan.vocab_size);
  DeviceArray<std::byte> scratch(cuda::SamplingScratchBytes(rows, plan.vocab_size));
  DeviceArray<cuda::SlotState> states{std::vector<cuda::SlotState>(rows)};
  DeviceArray<cuda::SampledRow> out(rows);
  DeviceArray<int32_t> no_lists(1);
  for (const SamplingCase& settings : kSamplingCases) {
    std::vector<cuda::SamplingRow> spec(rows);
    std::vector<cuda::SamplingSlot> slots(rows);
    for (int row = 0; row < rows; ++row) {
      spec[row].logits_row = row;
      spec[row].slot = row;
      slots[row].seed = 5;
      slots[row].greedy = settings.greedy ? 1 : 0;
      slots[row].top_p = settings.top_p;
      slots[row].top_k = settings.top_k;
      slots[row].num_logprobs = settings.num_logprobs;
    }
    DeviceArray<cuda::SamplingRow> device_spec(spec);
    DeviceArray<cuda::SamplingSlot> device_slots(slots);
    cuda::SamplingCall call;
    call.rows = rows;
    call.num_logits_rows = rows;
    call.vocab_size = plan.vocab_size;
    call.needs.logprobs = settings.num_logprobs >= 0;
    call.logits = logits.get();
    call.spec = device_spec.get();
    call.slots = device_slots.get();
    call.states = states.get();
    call.lists = no_lists.get();
    call.replaced = no_lists.get();
    call.out = out.get();
    call.scratch = scratch.get();
    sink.Time(Row(model, settings.name, fmt::format("{}", plan.vocab_size), rows,
                  4.0 * rows * plan.vocab_size),
              [&] {
                return TimeCalls(stream, sink,
                                 [&](const LaunchContext& c) { cuda::RunSampling(c, call); });
              });
  }
}

}  // namespace

void BenchSmall(const std::string& model, const ModelPlan& plan, const BenchSink& sink) {
  const cuda::Stream stream;
  for (const int rows : sink.rows) {
    BenchEmbedding(model, plan, rows, stream, sink);
    BenchResidual(model, plan, rows, stream, sink);
    BenchPerLayerBlock(model, plan, rows, stream, sink);
    for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
      const auto layer =
          std::find_if(plan.layers.begin(), plan.layers.end(),
                       [&](const LayerPlan& l) { return l.kind == kind && l.owns_kv(); });
      if (layer != plan.layers.end()) BenchQueryEntry(model, *layer, rows, stream, sink);
    }
    if (rows <= kMaxSampledRows) BenchSampling(model, plan, rows, stream, sink);
  }
}

}  // namespace lapidary
