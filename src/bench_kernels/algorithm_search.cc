#include "bench_kernels/algorithm_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "ops/cuda/linear/gemm_algorithms.h"

namespace lapidary {
namespace {

// Rows of graphs that go through cuBLASLt, then ends of buckets that prompts fall into.
constexpr int kRows[] = {112, 128, 160, 192, 224, 256, 288, 320,  352, 384,
                         416, 448, 480, 512, 640, 768, 896, 1024, 2048};
constexpr int kMaxLogitRows = 512;
constexpr int kCandidates = 10;
constexpr int kQuickReplays = 3;
constexpr int kCarefulReplays = 9;
constexpr double kWorthwhile = 1.03;  // times faster; less is noise

struct Kept {
  cublasLtMatmulAlgo_t algorithm;
  std::string comment;
};

// The best candidate if it is worth an entry: found by quick timings, confirmed by careful ones.
std::optional<Kept> Best(ProductTimer& timer, const ProductShape& shape, int rows) {
  const auto candidates = timer.Candidates(shape, rows, kCandidates);
  size_t best = 0;
  double best_us = 0.0;
  double first_us = 0.0;
  for (size_t idx = 0; idx < candidates.size(); ++idx) {
    const double us = timer.TimeAlgorithm(shape, rows, candidates[idx], kQuickReplays);
    if (idx == 0) first_us = best_us = us;
    if (us > 0.0 && (best_us <= 0.0 || us < best_us)) {
      best = idx;
      best_us = us;
    }
  }
  if (best == 0 || first_us < kWorthwhile * best_us) return std::nullopt;
  // In turn, so that a change of the card's clock meets both.
  double gain = 1e9;
  for (int round = 0; round < 2; ++round) {
    first_us = timer.TimeAlgorithm(shape, rows, candidates[0], kCarefulReplays);
    best_us = timer.TimeAlgorithm(shape, rows, candidates[best], kCarefulReplays);
    gain = std::min(gain, first_us / best_us);
  }
  if (gain < kWorthwhile) return std::nullopt;
  return Kept{candidates[best],
              fmt::format("{}: {:.1f} -> {:.1f} us", shape.name, first_us, best_us)};
}

}  // namespace

AlgorithmSearch SearchWith(ProductTimer& timer, const std::vector<NamedPlan>& models,
                           const std::string& gpu,
                           const std::function<void(int64_t, int64_t)>& on_progress) {
  std::map<cuda::GemmShape, ProductShape> products;
  for (const auto& [name, plan] : models) {
    for (const ProductShape& shape : ProductShapes(name, plan)) {
      for (const int rows : kRows) {
        if (shape.f32_output() && rows > kMaxLogitRows) continue;
        products.emplace(cuda::GemmShape{shape.out_dim, shape.in_dim, rows, shape.f32_output()},
                         shape);
      }
    }
  }
  AlgorithmSearch search;
  std::string entries;
  for (const auto& [key, shape] : products) {
    const auto kept = Best(timer, shape, key.rows);
    on_progress(++search.num_products, static_cast<int64_t>(products.size()));
    if (!kept) continue;
    ++search.num_kept;
    uint64_t words[8];
    static_assert(sizeof(words) == sizeof(kept->algorithm));
    std::memcpy(words, &kept->algorithm, sizeof(words));
    entries += fmt::format("// {}\nLAPIDARY_GEMM_ALGORITHM({}, {}, {}, {}", kept->comment,
                           key.out_dim, key.in_dim, key.rows, key.f32_output);
    for (const uint64_t word : words) entries += fmt::format(", 0x{:x}", word);
    entries += ")\n";
  }
  search.table = fmt::format(
      "// Made by `lapidary bench kernels --write-algorithms` on {}; not edited by hand. {} of {}\n"
      "// products have an algorithm that is {:.0f}% or more faster than the heuristic's.\n"
      "// out_dim, in_dim, rows, f32 output, then the algorithm's own words.\n"
      "// clang-format off\n"
      "LAPIDARY_GEMM_VERSION({})\n{}// clang-format on\n",
      gpu, search.num_kept, search.num_products, 100 * (kWorthwhile - 1), cublasLtGetVersion(),
      entries);
  return search;
}

}  // namespace lapidary
