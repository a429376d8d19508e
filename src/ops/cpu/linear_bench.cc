// The matrix product at E2B's shapes, weights from memory: every call takes the next of as many
// copies as exceed the caches. CPU time is that of all threads. Read is the same without a product:
// what the memory gives.
//
//   linear_bench --benchmark_filter='Linear/8/.*|Read/.*'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/huge_pages.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/linear_tiles.h"

namespace lapidary::cpu {
namespace {

constexpr int64_t kWeightBytes = int64_t{256} << 20;

struct Shape {
  const char* name;
  int64_t out;
  int64_t in;
};
constexpr Shape kShapes[] = {
    {"q", 2048, 1536},          {"o", 1536, 2048},
    {"gate", 6144, 1536},       {"down", 1536, 6144},
    {"wide_gate", 12288, 1536}, {"wide_down", 1536, 12288},
    {"ple_gate", 256, 1536},    {"ple_projection", 1536, 256},
};
constexpr DType kTypes[] = {DType::kBF16,       DType::kQ4_0,      DType::kQ8_0,
                            DType::kQ4_K,       DType::kQ5_K,      DType::kQ6_K,
                            DType::kPanel4,     DType::kPanel4Min, DType::kPanel6Min,
                            DType::kPanel6Fine, DType::kPanel8};

struct NamedFormat {
  const char* name;
  WeightFormat format;
};
std::vector<NamedFormat> Formats() {
  std::vector<NamedFormat> formats;
  for (const DType dtype : kTypes) formats.push_back({DTypeName(dtype), FormatOf(dtype)});
  formats.push_back({"FP8", RowMajorFormat(CodeType::kE4M3, {1, 0}, ScaleType::kBF16)});
  formats.push_back({"FP8_BLOCK", RowMajorFormat(CodeType::kE4M3, {128, 128}, ScaleType::kBF16)});
  formats.push_back(
      {"NVFP4", RowMajorFormat(CodeType::kE2M1, {1, 16}, ScaleType::kE4M3OverTensors)});
  return formats;
}

// bf16 values of either sign around 2^-7, in huge pages as those of a mapped checkpoint.
const std::vector<uint16_t>& Weights() {
  static const std::vector<uint16_t>* weights = [] {
    auto* values = new std::vector<uint16_t>();
    values->reserve(kWeightBytes / 2);
    AdviseHugePages(values->data(), kWeightBytes);
    values->resize(kWeightBytes / 2);
    uint32_t bits = 1;
    for (uint16_t& value : *values) {
      bits = bits * 1664525 + 1013904223;
      value = static_cast<uint16_t>(0x3c00 + (bits >> 24) + (bits >> 23 & 1) * 0x8000);
    }
    return values;
  }();
  return *weights;
}

// Any bits will do for codes; a scale that is an infinity costs no more than another.
void BM_Linear(benchmark::State& state, const Shape& shape, const WeightFormat& format,
               int64_t rows, int num_threads, Bf16Math bf16_math) {
  ThreadPool threads(num_threads);
  const std::vector<float> x(rows * shape.in, 0.5f);
  std::vector<float> y(rows * shape.out);
  const int64_t bytes = BytesOf(format, shape.out, shape.in).total();
  const int64_t num_copies = kWeightBytes / bytes;
  const auto* weights = reinterpret_cast<const std::byte*>(Weights().data());
  int64_t copy = 0;
  for (auto _ : state) {
    const MatrixRef w = MatrixAt(weights + copy * bytes, format, static_cast<int>(shape.out),
                                 static_cast<int>(shape.in));
    Linear(x.data(), rows, w, y.data(), shape.out, threads, bf16_math);
    benchmark::ClobberMemory();
    copy = (copy + 1) % num_copies;
  }
  using benchmark::Counter;
  const double products = static_cast<double>(rows * shape.out * shape.in);
  state.counters["FLOPS"] = Counter(2 * products, Counter::kIsIterationInvariantRate);
  state.counters["bytes"] = Counter(static_cast<double>(bytes), Counter::kIsIterationInvariantRate);
}

void BM_Read(benchmark::State& state, int num_threads) {
  ThreadPool threads(num_threads);
  const auto* values = reinterpret_cast<const uint64_t*>(Weights().data());
  constexpr int64_t kPiece = 1 << 15;
  for (auto _ : state) {
    threads.ParallelFor(kWeightBytes / 8 / kPiece, 8, [&](int64_t begin, int64_t end, int) {
      uint64_t sum = 0;
      for (int64_t idx = begin * kPiece; idx < end * kPiece; ++idx) sum += values[idx];
      benchmark::DoNotOptimize(sum);
    });
  }
  using benchmark::Counter;
  state.counters["bytes"] =
      Counter(static_cast<double>(kWeightBytes), Counter::kIsIterationInvariantRate);
}

void Register(benchmark::internal::Benchmark* bench) {
  bench->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void RegisterAll() {
  std::vector<int> thread_counts = {1, 2};
  const int num_cores = ThreadPool(0).num_threads();
  if (num_cores > 2) thread_counts.push_back(num_cores);
  for (const int num_threads : thread_counts) {
    const std::string suffix = "/threads:" + std::to_string(num_threads);
    Register(benchmark::RegisterBenchmark(("Read" + suffix).c_str(), BM_Read, num_threads));
    for (const int64_t rows : {1, 2, 4, 8, 16, 64, 256, 512}) {
      for (const Shape& shape : kShapes) {
        for (const NamedFormat& named : Formats()) {
          if (!FitsColumns(named.format, shape.in)) continue;
          const auto add = [&](const char* type, Bf16Math bf16_math) {
            const std::string name =
                "Linear/" + std::to_string(rows) + "/" + shape.name + "/" + type + suffix;
            Register(benchmark::RegisterBenchmark(name.c_str(), BM_Linear, shape, named.format,
                                                  rows, num_threads, bf16_math));
          };
          add(named.name, Bf16Math::kExact);
          const bool is_bf16 = named.format == FormatOf(DType::kBF16);
          if (is_bf16 && HasTiles()) add("BF16_TILES", Bf16Math::kTiles);
        }
      }
    }
  }
}

const bool kRegistered = (RegisterAll(), true);

}  // namespace
}  // namespace lapidary::cpu
