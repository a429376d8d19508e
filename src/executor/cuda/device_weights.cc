#include "executor/cuda/device_weights.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "base/thread_pool.h"
#include "model/synthetic_values.h"
#include "ops/cuda/synthetic.h"
#include "tensor/repack.h"
#include "tensor/weight_tiles.h"

namespace lapidary::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{64} << 20;

// RepackRows of what RoundRows makes, a row at a time.
void RoundAndRepack(const MatrixRef& stored, int64_t begin, int64_t end, DType rounding,
                    const WeightFormat& format, std::byte* out) {
  std::vector<std::byte> row(DTypeBytes(rounding, stored.cols));
  TileRow values;
  const MatrixRef rounded{
      .data = row.data(), .format = FormatOf(rounding), .rows = 1, .cols = stored.cols};
  for (int64_t idx = begin; idx < end; ++idx) {
    RoundRows(stored.Rows(static_cast<int>(idx), 1), 0, 1, rounding, row.data());
    MakeTileRow(rounded, 0, format, &values);
    StoreTileRow(values, format, idx, stored.cols, out);
  }
}

}  // namespace

struct DeviceStorage::Staging {
  std::array<PinnedBuffer, 2> buffers{PinnedBuffer(kStagingBytes, "uploading weights"),
                                      PinnedBuffer(kStagingBytes, "uploading weights")};
  std::array<Event, 2> sent;
  std::array<bool, 2> used{};
  int next = 0;
  ThreadPool threads{0};
};

DeviceStorage::DeviceStorage(WeightPlan plan, const TensorSource* source, uint64_t dummy_seed,
                             PlePlacement ple_placement, const LaunchContext& context)
    : plan_(std::move(plan)),
      source_(source),
      dummy_seed_(dummy_seed),
      ple_placement_(ple_placement),
      context_(context) {
  const WeightBytes bytes = PlanWeights(plan_, ple_placement);
  matrices_ = DeviceBuffer(bytes.matrices, "the weights");
  vectors_ = DeviceBuffer(bytes.vectors, "the weights");
  ple_table_ = PinnedBuffer(bytes.host_table, "the per-layer embedding table (--ple host)");
  staging_ = std::make_unique<Staging>();
  if (source_ != nullptr) {
    progress_ = std::make_unique<Progress>("uploading weights", bytes.matrices + bytes.host_table,
                                           Progress::Unit::kBytes);
  }
}

DeviceStorage::~DeviceStorage() = default;

Result<MatrixRef> DeviceStorage::GetMatrix(const TensorSpec& spec) {
  const PlannedWeight& weight = plan_.Of(spec);
  std::byte* to = nullptr;
  const bool on_host = IsPleTable(spec) && ple_placement_ == PlePlacement::kHost;
  if (on_host) {
    to = ple_table_.As<std::byte>();
  } else {
    to = matrices_.As<std::byte>(matrix_end_);
    matrix_end_ += weight.loaded_bytes;
    CHECK_LE(matrix_end_, matrices_.num_bytes());
  }
  const MatrixRef matrix{.data = to,
                         .format = weight.loaded,
                         .rows = static_cast<int>(weight.rows()),
                         .cols = static_cast<int>(weight.cols())};
  if (source_ == nullptr) {
    const SyntheticLaw law = MakeSyntheticLaw(spec, dummy_seed_);
    if (weight.loaded.layout == WeightLayout::kTiles) {
      RunFillTiles(context_, law, matrix, to);
    } else if (weight.loaded.layout == WeightLayout::kBlocks) {
      RunFillBlocks(context_, law, matrix, to);
    } else {
      RunFillSynthetic(context_, law, spec.num_elements(), reinterpret_cast<bf16*>(to));
    }
    return matrix;
  }
  ASSIGN_OR_RETURN(const std::vector<MatrixRef> parts, source_->GetStored(spec));
  int64_t rows = 0;
  for (const MatrixRef& part : parts) {
    Upload(part, weight.rounding, weight.loaded, to + rows * matrix.row_bytes());
    rows += part.rows;
  }
  return matrix;
}

void DeviceStorage::Upload(const MatrixRef& stored, std::optional<DType> rounding,
                           const WeightFormat& format, std::byte* to) {
  const int64_t row_bytes = RowBytes(format, stored.cols);
  CHECK_LE(row_bytes, kStagingBytes);
  // Whole tiles, from rows with scales of their own.
  const int64_t unit =
      std::lcm(std::max(RowsOfUnit(format), 1), std::max(RowsOfUnit(stored.format), 1));
  CHECK_LE(unit * row_bytes, kStagingBytes);
  const int64_t most_rows = kStagingBytes / row_bytes / unit * unit;
  const int64_t grain = std::max<int64_t>((int64_t{2} << 20) / row_bytes, 1);
  for (int64_t first = 0; first < stored.rows; first += most_rows) {
    const int64_t count = std::min(most_rows, stored.rows - first);
    const int which = std::exchange(staging_->next, 1 - staging_->next);
    if (staging_->used[which]) staging_->sent[which].Wait();
    std::byte* const piece = staging_->buffers[which].As<std::byte>();
    const MatrixRef rows = stored.Rows(static_cast<int>(first), static_cast<int>(count));
    staging_->threads.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int) {
      if (rounding && format == FormatOf(*rounding)) {
        RoundRows(rows, begin, end, *rounding, piece);
      } else if (rounding) {
        RoundAndRepack(rows, begin, end, *rounding, format, piece);
      } else {
        RepackRows(rows, begin, end, format, piece);
      }
    });
    LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(to + first * row_bytes, piece, count * row_bytes,
                                        cudaMemcpyDefault, context_.stream));
    staging_->sent[which].Record(context_.stream);
    staging_->used[which] = true;
    progress_->Advance(count * row_bytes);
  }
}

Result<std::vector<float>> DeviceStorage::Floats(const TensorSpec& spec) {
  if (source_ != nullptr) {
    ASSIGN_OR_RETURN(const TensorView tensor, source_->Get(spec));
    return ToFloats(tensor);
  }
  std::vector<float> values(spec.num_elements());
  FillSynthetic(spec, dummy_seed_, 0, values);
  for (float& value : values) value = Bf16ToFloat(FloatToBf16(value));
  return values;
}

Result<DeviceStorage::Vector> DeviceStorage::GetVector(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<float> values, Floats(spec));
  float* to = vectors_.As<float>(vector_end_);
  vector_end_ += VectorBytes(plan_.Of(spec));
  CHECK_LE(vector_end_, vectors_.num_bytes());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float),
                                      cudaMemcpyHostToDevice, context_.stream));
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(context_.stream));  // `values` goes away.
  return to;
}

Result<float> DeviceStorage::GetScalar(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<float> values, Floats(spec));
  return values.at(0);
}

void DeviceStorage::Finish() {
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(context_.stream));
  staging_.reset();
  progress_.reset();
  source_ = nullptr;
}

}  // namespace lapidary::cuda
