#include "model/quantised_source.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/huge_pages.h"
#include "base/progress.h"
#include "base/release_pages.h"
#include "tensor/float8.h"
#include "tensor/quantise.h"

namespace lapidary {
namespace {

// Elements [first, first + count), whole blocks of both types.
void QuantisePiece(const TensorView& from, int64_t first, int64_t count, DType to, std::byte* out) {
  const std::vector<float> values =
      ToFloats({from.data + DTypeBytes(from.dtype, first), from.dtype, {count}});
  Quantise(values.data(), count, to, out + DTypeBytes(to, first));
}

// Row `row` in steps of F8_E4M3, with a scale of its own in bf16, as bf16.
void RoundRowToFloat8(const TensorView& from, int64_t row, std::byte* out) {
  const int64_t cols = from.shape.back();
  const std::byte* begin = from.data + DTypeBytes(from.dtype, row * cols);
  const std::vector<float> values = ToFloats({begin, from.dtype, {cols}});
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = Bf16ToFloat(FloatToBf16(largest / kLargestFloat8));
  auto* rounded = reinterpret_cast<uint16_t*>(out) + row * cols;
  for (const float value : values) {
    const float step = scale == 0.0f ? 0.0f : Float8ToFloat(FloatToFloat8(value / scale));
    *rounded++ = FloatToBf16(step * scale);
  }
}

// What a tensor is rounded to; none: it stays.
std::optional<DType> RoundedType(const TensorSpec& spec, DType stored, DType to) {
  const bool is_table =
      spec.component == TensorComponent::kEmbedding || spec.component == TensorComponent::kHead;
  if (spec.shape.size() < 2 || IsBlockDType(stored) || spec.role == TensorRole::kRouter ||
      spec.component == TensorComponent::kPerLayerProjection) {
    return std::nullopt;
  }
  if (to == DType::kF8E4M3) return is_table ? std::nullopt : std::optional(DType::kBF16);
  const auto fits = [&](DType dtype) { return spec.shape.back() % BlockOf(dtype).elements == 0; };
  DType wanted = is_table ? DType::kQ8_0 : to;
  if (wanted == DType::kQ4_K && !fits(wanted)) wanted = DType::kQ5_0;
  return fits(wanted) ? std::optional(wanted) : std::nullopt;
}

}  // namespace

DType QuantisedType(const TensorSpec& spec, DType stored, DType to) {
  return RoundedType(spec, stored, to).value_or(stored);
}

Result<std::unique_ptr<QuantisedSource>> QuantisedSource::Make(
    const ModelPlan& plan, std::shared_ptr<const TensorSource> source, DType to,
    ThreadPool& threads, bool release_stored) {
  CHECK(CanQuantiseTo(to) || to == DType::kF8E4M3) << DTypeName(to);
  auto quantised = std::unique_ptr<QuantisedSource>(new QuantisedSource(std::move(source)));
  struct Matrix {
    std::string name;
    TensorView from;
    DType to;
  };
  std::vector<Matrix> matrices;
  int64_t num_elements = 0;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    if (spec.component == TensorComponent::kPerLayerEmbedding) continue;
    ASSIGN_OR_RETURN(const TensorView tensor, quantised->source_->Get(spec));
    const std::optional<DType> dtype = RoundedType(spec, tensor.dtype, to);
    if (!dtype) continue;
    matrices.push_back({spec.name, tensor, *dtype});
    num_elements += tensor.num_elements();
  }
  Progress progress("quantising", num_elements, Progress::Unit::kItems);
  for (const Matrix& matrix : matrices) {
    const int64_t count = matrix.from.num_elements();
    const int64_t bytes = DTypeBytes(matrix.to, count);
    auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    AdviseHugePages(memory.get(), bytes);
    if (to == DType::kF8E4M3) {
      constexpr int64_t kRows = 16;
      threads.ParallelFor(count / matrix.from.shape.back(), kRows,
                          [&](int64_t begin, int64_t end, int) {
                            for (int64_t row = begin; row < end; ++row) {
                              RoundRowToFloat8(matrix.from, row, memory.get());
                            }
                          });
    } else {
      constexpr int64_t kPiece = int64_t{1} << 16;  // a multiple of every block
      threads.ParallelFor(count, kPiece, [&](int64_t begin, int64_t end, int) {
        QuantisePiece(matrix.from, begin, end - begin, matrix.to, memory.get());
      });
    }
    quantised->tensors_[matrix.name] = {memory.get(), matrix.to, matrix.from.shape};
    quantised->memory_.push_back(std::move(memory));
    if (release_stored) ReleasePages(matrix.from.data, matrix.from.num_bytes());
    progress.Advance(count);
  }
  return quantised;
}

Result<TensorView> QuantisedSource::Get(const TensorSpec& spec) const {
  const auto it = tensors_.find(spec.name);
  if (it == tensors_.end()) return source_->Get(spec);
  return it->second;
}

}  // namespace lapidary
