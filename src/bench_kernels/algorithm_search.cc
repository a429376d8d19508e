#include "bench_kernels/algorithm_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>

#include "ops/cuda/linear/gemm_algorithms.h"
#include "ops/cuda/linear/linear_scratch.h"

namespace lapidary {
namespace {

// Rows of graphs that go through cuBLASLt, then ends of buckets that prompts fall into.
constexpr int kRows[] = {112, 128, 160, 192, 224, 256, 288, 320,  352,  384,
                         416, 448, 480, 512, 640, 768, 896, 1024, 2048, 8192};
constexpr int kMaxLogitRows = 512;
constexpr int kCandidates = 10;
constexpr int kQuickReplays = 3;
constexpr int kCarefulReplays = 9;
constexpr double kWorthwhile = 1.03;  // times faster; less is noise
// Of so many rows a card is at its power limit, and what counts is how little power an algorithm
// takes. Clocks follow slowly, so each runs for a while before it is timed.
constexpr int kLongRows = 2049;
constexpr int kLongCandidates = 6;
constexpr double kSettlingSeconds = 0.2;
constexpr double kTimedSeconds = 0.2;
constexpr double kWorthwhileLong = 1.01;

struct Kept {
  cublasLtMatmulAlgo_t algorithm;
  std::string comment;
};

// The rows of a product that a call of so many becomes.
int RowsOfProduct(const ProductShape& shape, int rows) {
  if (shape.epilogue != cuda::Epilogue::kGatedGelu) return rows;
  return cuda::GatedPartRows(rows, shape.out_dim, cuda::GatedProductBytes(ProductTimer::kMaxRows));
}

Kept MakeKept(const cublasLtMatmulAlgo_t& algorithm, const ProductShape& shape, double first_us,
              double us) {
  return {algorithm, fmt::format("{}: {:.1f} -> {:.1f} us", shape.name, first_us, us)};
}

// Us of a call among many of its kind. Infinite: it cannot run.
double TimeLong(ProductTimer& timer, const ProductShape& shape, int rows,
                const cublasLtMatmulAlgo_t& algorithm) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double sum = 0.0;
  for (int count = 0;;) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds >= kSettlingSeconds + kTimedSeconds && count > 0) return sum / count;
    const double us = timer.TimeAlgorithm(shape, rows, algorithm, kCarefulReplays);
    if (us <= 0.0) return std::numeric_limits<double>::infinity();
    if (seconds < kSettlingSeconds) continue;
    sum += us;
    ++count;
  }
}

// The best candidate if it is worth an entry. Without one the heuristic is asked for the end of the
// bucket, whose best may waste much of the last tiles of these rows.
std::optional<Kept> BestLong(ProductTimer& timer, const ProductShape& shape, int rows) {
  auto candidates = timer.Candidates(shape, cuda::GemmRowBucket(rows), 1);
  for (const auto& candidate : timer.Candidates(shape, rows, kLongCandidates)) {
    candidates.push_back(candidate);
  }
  std::vector<double> us;
  for (const auto& candidate : candidates) us.push_back(TimeLong(timer, shape, rows, candidate));
  const size_t best = std::min_element(us.begin(), us.end()) - us.begin();
  if (us[0] < kWorthwhileLong * us[best]) return std::nullopt;
  return MakeKept(candidates[best], shape, us[0], us[best]);
}

// The same, found by quick timings and confirmed by careful ones.
std::optional<Kept> Best(ProductTimer& timer, const ProductShape& shape, int rows) {
  if (rows >= kLongRows) return BestLong(timer, shape, rows);
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
  return MakeKept(candidates[best], shape, first_us, best_us);
}

}  // namespace

AlgorithmSearch SearchWith(ProductTimer& timer, const std::vector<NamedPlan>& models,
                           const std::string& gpu,
                           const std::function<void(int64_t, int64_t)>& on_progress) {
  std::map<cuda::GemmShape, std::pair<ProductShape, int>> products;  // and the rows to time
  for (const auto& [name, plan] : models) {
    for (const ProductShape& shape : ProductShapes(name, plan)) {
      for (const int rows : kRows) {
        if (shape.f32_output() && rows > kMaxLogitRows) continue;
        const int product_rows = RowsOfProduct(shape, rows);
        products.emplace(cuda::GemmShape{shape.out_dim, shape.in_dim,
                                         cuda::GemmRowBucket(product_rows), shape.f32_output()},
                         std::pair(shape, product_rows));
      }
    }
  }
  AlgorithmSearch search;
  std::string entries;
  for (const auto& [key, product] : products) {
    const auto kept = Best(timer, product.first, product.second);
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
      "// Made by `lapidary bench kernels --write-algorithms` on {}. {} of {}\n"
      "// products have an algorithm that is {:.0f}% or more faster than the heuristic's\n"
      "// ({:.0f}% above {} rows).\n"
      "// out_dim, in_dim, rows, f32 output, then the algorithm's own words.\n"
      "// clang-format off\n"
      "LAPIDARY_GEMM_VERSION({})\n{}// clang-format on\n",
      gpu, search.num_kept, search.num_products, 100 * (kWorthwhile - 1),
      100 * (kWorthwhileLong - 1), kLongRows - 1, cublasLtGetVersion(), entries);
  return search;
}

}  // namespace lapidary
