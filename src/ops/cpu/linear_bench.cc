// The matrix product at E2B's shapes, weights from memory: every call takes the next of as many
// copies as exceed the caches. CPU time is that of all threads.
//
//   linear_bench --benchmark_filter=Linear/8/.*
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "base/huge_pages.h"
#include "ops/cpu/linear.h"

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

void BM_Linear(benchmark::State& state, const Shape& shape, int64_t rows, int num_threads) {
  ThreadPool threads(num_threads);
  const std::vector<float> x(rows * shape.in, 0.5f);
  std::vector<float> y(rows * shape.out);
  const int64_t bytes = shape.out * shape.in * 2;
  const int64_t num_copies = kWeightBytes / bytes;
  const auto* weights = reinterpret_cast<const std::byte*>(Weights().data());
  int64_t copy = 0;
  for (auto _ : state) {
    const MatrixRef w{.data = weights + copy * bytes,
                      .rows = static_cast<int>(shape.out),
                      .cols = static_cast<int>(shape.in)};
    Linear(x.data(), rows, w, y.data(), shape.out, threads);
    benchmark::ClobberMemory();
    copy = (copy + 1) % num_copies;
  }
  using benchmark::Counter;
  const double products = static_cast<double>(rows * shape.out * shape.in);
  state.counters["FLOPS"] = Counter(2 * products, Counter::kIsIterationInvariantRate);
  state.counters["bytes"] = Counter(static_cast<double>(bytes), Counter::kIsIterationInvariantRate);
}

void RegisterAll() {
  for (const int64_t rows : {1, 2, 4, 8, 16, 64, 256}) {
    for (const Shape& shape : kShapes) {
      for (const int num_threads : {1, 2}) {
        const std::string name = "Linear/" + std::to_string(rows) + "/" + shape.name +
                                 "/threads:" + std::to_string(num_threads);
        benchmark::RegisterBenchmark(name.c_str(), BM_Linear, shape, rows, num_threads)
            ->MeasureProcessCPUTime()
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

const bool kRegistered = (RegisterAll(), true);

}  // namespace
}  // namespace lapidary::cpu
