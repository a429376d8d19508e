#include "model/converted_source.h"

#include <numeric>
#include <vector>

#include "base/huge_pages.h"
#include "base/progress.h"
#include "base/release_pages.h"
#include "tensor/repack.h"
#include "tensor/stack_parts.h"

namespace lapidary {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kLine = 64;
constexpr int64_t kRowsAtOnce = 16;  // whole panels

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// A part of a matrix to the rows from `first_row` on of what lies at `memory`. Panels are made of
// the rows of all parts together; there is one part then.
void ConvertPart(const MatrixRef& part, const PlannedWeight& weight, int64_t first_row,
                 std::byte* memory, ThreadPool& threads) {
  const WeightFormat& format = weight.loaded;
  std::byte* const out = memory + first_row * RowBytes(format, part.cols);
  // Of codes that were rounded, behind all of them.
  std::byte* const scales = memory + BytesOf(format, weight.rows(), part.cols).data +
                            first_row * ScaleBytes(format.scale);
  threads.ParallelFor(part.rows, kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
    if (weight.rounding && format == kRoundedFloat8) {
      RoundRowsToFloat8(part, begin, end, out, scales);
    } else if (weight.rounding) {
      RoundRows(part, begin, end, *weight.rounding, out);
    } else if (format.is_float_codes()) {
      StackPart(part, begin, end, format, first_row, weight.rows(), memory);
    } else {
      RepackRows(part, begin, end, format, out);
    }
  });
}

}  // namespace

Status ConvertedSource::Convert(const WeightPlan& plan, ThreadPool& threads, bool release_stored) {
  int64_t total_bytes = 0;
  int64_t num_elements = 0;
  for (const PlannedWeight& weight : plan.weights()) {
    if (!weight.is_converted) continue;
    total_bytes += RoundUp(weight.loaded_bytes, kLine);
    num_elements += weight.spec.num_elements();
  }
  total_bytes = RoundUp(total_bytes, kHugePage);
  memory_.reset(static_cast<std::byte*>(
      std::aligned_alloc(static_cast<size_t>(kHugePage), static_cast<size_t>(total_bytes))));
  if (memory_ == nullptr) {
    return MakeError("no memory for {:.2f} GB of weights in the formats that the CPU reads",
                     1e-9 * static_cast<double>(total_bytes));
  }
  AdviseHugePages(memory_.get(), static_cast<size_t>(total_bytes));
  Progress progress("converting weights", num_elements, Progress::Unit::kItems);
  std::byte* to = memory_.get();
  for (const PlannedWeight& weight : plan.weights()) {
    if (!weight.is_converted) continue;
    ASSIGN_OR_RETURN(const std::vector<MatrixRef> parts, source_->GetStored(weight.spec));
    int64_t row = 0;
    for (const MatrixRef& part : parts) {
      ConvertPart(part, weight, row, to, threads);
      row += part.rows;
      if (release_stored) ReleasePages(part.data, part.bytes().data);
    }
    converted_[weight.spec.name] = MatrixAt(to, weight.loaded, static_cast<int>(weight.rows()),
                                            static_cast<int>(weight.cols()));
    to += RoundUp(weight.loaded_bytes, kLine);
    progress.Advance(weight.spec.num_elements());
  }
  return {};
}

Result<std::unique_ptr<ConvertedSource>> ConvertedSource::Make(
    const WeightPlan& plan, std::shared_ptr<const TensorSource> source, ThreadPool& threads,
    bool release_stored) {
  auto converted = std::unique_ptr<ConvertedSource>(new ConvertedSource(std::move(source)));
  if (plan.converts_any()) {
    RETURN_IF_ERROR(converted->Convert(plan, threads, release_stored));
  }
  return converted;
}

Result<std::shared_ptr<const TensorSource>> ConvertedSource::Wrap(
    const WeightPlan& plan, std::shared_ptr<const TensorSource> source, ThreadPool& threads,
    bool release_stored) {
  if (!plan.converts_any()) return source;
  ASSIGN_OR_RETURN(auto converted, Make(plan, std::move(source), threads, release_stored));
  return std::shared_ptr<const TensorSource>(std::move(converted));
}

Result<TensorView> ConvertedSource::Get(const TensorSpec& spec) const {
  const auto it = converted_.find(spec.name);
  if (it == converted_.end()) return source_->Get(spec);
  const MatrixRef& matrix = it->second;
  if (!matrix.format.has_dtype()) {
    return MakeError("{} is {}, which has no values of its own to be read", spec.name,
                     FormatName(matrix.format));
  }
  return TensorView{matrix.As<std::byte>(), matrix.format.unit, spec.shape};
}

Result<std::vector<MatrixRef>> ConvertedSource::GetStored(const TensorSpec& spec) const {
  const auto it = converted_.find(spec.name);
  if (it == converted_.end()) return source_->GetStored(spec);
  return std::vector<MatrixRef>{it->second};
}

Result<std::shared_ptr<const TensorSource>> ConvertForCpu(
    const std::vector<TensorSpec>& specs, std::shared_ptr<const TensorSource> stored,
    const WeightRequest& request, ThreadPool& threads) {
  ASSIGN_OR_RETURN(const WeightPlan plan, WeightPlan::Make(specs, stored.get(), request));
  return ConvertedSource::Wrap(plan, std::move(stored), threads, /*release_stored=*/true);
}

}  // namespace lapidary
